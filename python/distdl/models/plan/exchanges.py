"""The workers of a step, and what they receive within an operation."""

from __future__ import annotations

import math

import torch

from distdl.models.operations.placement import Blocks
from distdl.models.plan.planning import Plan, PlanStep
from distdl.nn.base.by_dimensions import space_of
from distdl.torch_compat.layers import AnyBatchNorm, AnyInstanceNorm

_SUM_MOMENTS = (AnyBatchNorm, AnyInstanceNorm, torch.nn.GroupNorm)


def received_within(step: PlanStep) -> tuple[int, int]:
    """Bytes that a worker receives within an operation in the forward pass, and the number of exchanges.

    They are halos, sums of moments, keys and values, and parts of sums over split features.
    """
    node, workers = step.node, step.workers
    if isinstance(workers, Blocks) and step.operation.received is not None:
        received = step.operation.received(workers) // len(workers.ranks)
        return received * node.outputs[0].dtype.itemsize, received > 0
    if not isinstance(workers, Blocks) or not isinstance(node.target, torch.nn.Module):
        return 0, 0
    split = [d for d, p in enumerate(workers.splits) if p > 1]
    if node.key == "MultiheadAttention":
        rows = len(workers.splits) - (2 if node.module.batch_first else 3)
        p = workers.splits[rows] if rows >= 0 else 1
        return 2 * (p - 1) * workers.largest() * node.arguments[0].dtype.itemsize, p > 1
    module = node.module
    space = space_of(module)
    if getattr(module, "kernel_size", None) is None or space is None:  # Unfold and Fold read whole images
        return 0, bool(split) and isinstance(module, _SUM_MOMENTS)
    x = node.arguments[0]
    first = len(x.shape) - space
    of_block = [-(-n // p) for n, p in zip(x.shape, workers.splits, strict=True)]
    halos = {d: _halo(module, d - first) for d in split if d >= first}
    received = 0
    for d, halo in halos.items():
        of_worker = halo if workers.splits[d] > 2 else -(-halo // 2)  # of two workers each has one neighbor
        received += of_worker * math.prod(n for e, n in enumerate(of_block) if e != d)
    return received * x.dtype.itemsize, sum(halo > 0 for halo in halos.values())


def _halo(module: torch.nn.Module, d: int) -> int:
    """The number of elements along a dimension of space that windows read beyond a block, on both sides together."""

    def along(name: str) -> int:
        option = getattr(module, name, None)
        option = 1 if option is None else option
        return int(option if isinstance(option, int) else option[d])

    stride = along("stride" if getattr(module, "stride", None) is not None else "kernel_size")
    beyond = max(0, along("dilation") * (along("kernel_size") - 1) + 1 - stride)
    return -(-beyond // stride) if getattr(module, "transposed", False) else beyond


def workers_of(step: PlanStep, plan: Plan) -> tuple[int, ...]:
    """The ranks that compute a step."""
    return step.workers.ranks if isinstance(step.workers, Blocks) else plan.base.ranks
