"""The workers of a step, and what they receive within an operation."""

from __future__ import annotations

import math

import torch

from distdl.models.capture.recording import Node
from distdl.models.operations.placement import Blocks
from distdl.models.plan.planning import Plan, PlanStep
from distdl.nn.base.by_dimensions import space_of
from distdl.torch_compat.layers import AnyBatchNorm, AnyInstanceNorm

_SUM_MOMENTS = (AnyBatchNorm, AnyInstanceNorm, torch.nn.GroupNorm)


def received_within(step: PlanStep) -> tuple[int, int]:
    """Bytes that a worker receives within an operation in the forward pass, and the number of exchanges.

    They are halos, keys and values, and parts of sums over split features. Sums of moments are exchanges of few bytes,
    which count as none.
    """
    node, workers = step.operation.of_layer or step.node, step.workers
    if isinstance(workers, Blocks) and step.operation.received is not None:
        received = step.operation.received(workers) // len(workers.ranks)
        return received * node.outputs[0].dtype.itemsize, received > 0
    if not isinstance(workers, Blocks) or not isinstance(node.target, torch.nn.Module):
        return 0, 0
    module = node.module
    if node.key == "MultiheadAttention":
        sequence = len(workers.splits) - (2 if module.batch_first else 3)
        p = workers.splits[sequence] if sequence >= 0 else 1
        return 2 * (p - 1) * workers.largest() * node.arguments[0].dtype.itemsize, p > 1
    space = space_of(module)
    if getattr(module, "kernel_size", None) is not None and space is not None:  # Unfold and Fold read whole images
        return _received_halos(node, workers, space)
    return 0, max(workers.splits, default=1) > 1 and isinstance(module, _SUM_MOMENTS)


def _received_halos(node: Node, workers: Blocks, space: int) -> tuple[int, int]:
    x, module = node.arguments[0], node.module
    first = len(x.shape) - space
    block_shape = [-(-n // p) for n, p in zip(x.shape, workers.splits, strict=True)]
    halos = {d: _halo(module, d - first) for d, p in enumerate(workers.splits) if d >= first and p > 1}
    received = 0
    for d, halo in halos.items():
        width = halo if workers.splits[d] > 2 else -(-halo // 2)  # of two workers each has a single neighbor
        received += width * math.prod(block_shape[:d] + block_shape[d + 1 :])
    return received * x.dtype.itemsize, any(halo > 0 for halo in halos.values())  # all of it at the same time


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
