"""Estimate the costs of a plan: memory, bytes that travel, and time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from distdl.models.capture.recording import Node, Value
from distdl.models.operations.placement import Blocks, Placement
from distdl.models.plan.machine import MachineProfile
from distdl.models.plan.planning import Plan, PlanStep
from distdl.models.rules.windows import CONVOLUTIONS
from distdl.nn.base.by_dimensions import space_of
from distdl.torch_compat.layers import AnyBatchNorm, AnyInstanceNorm

MIB = 1 << 20
VIEWS = frozenset(
    ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "T", "mT",
     "expand", "getitem", "select", "narrow", "detach", "contiguous", "Flatten", "movedim")
)  # fmt: skip
"""Operations whose results share memory with their inputs."""

_SUM_MOMENTS = (AnyBatchNorm, AnyInstanceNorm, torch.nn.GroupNorm)


@dataclass(frozen=True)
class Cost:
    """Costs of a training step, forward and backward.

    Attributes:
        memory: bytes on the fullest rank: blocks of all results, parameters and their gradients.
        sent: bytes that travel, of all ranks.
        seconds: the time of the step.
    """

    memory: int
    sent: int
    seconds: float


def cost(plan: Plan, profile: MachineProfile, work: Mapping[Node, float]) -> Cost:
    """Estimate the costs of a training step by a plan.

    Args:
        profile: the speeds of the machine, for the workers of the plan.
        work: the floating-point operations of each node in a forward pass.
    """
    ranks = plan.base.size
    values = dict.fromkeys(value for step in plan.steps for value in step.node.inputs)
    parameters = sum(value.nbytes for value in values if value.name and value.is_differentiable)
    held = Counter(dict.fromkeys(plan.base.ranks, 2 * parameters))  # with their gradients
    away = parameters * (ranks - 1) // ranks
    sent = 2 * away * ranks
    seconds = 2 * profile.transfer(away)
    for step, transfers in zip(plan.steps, plan.transfers(), strict=True):
        for value, counts in transfers:
            size = value.dtype.itemsize
            sent += 2 * sum(counts.values()) * size
            seconds += 2 * profile.transfer(max(counts.values(), default=0) * size)
            held.update({rank: count * size for rank, count in counts.items()})
        within, exchanges = received_within(step)
        sent += 2 * within * len(workers_of(step, plan))
        seconds += 2 * exchanges * profile.latency + 2 * within / profile.bandwidth
        seconds += _computing(step, plan, profile, work[step.node])
        if step.node.key not in VIEWS:
            for value in step.node.outputs:
                held.update(_bytes_of_ranks(value, plan.placement(value), plan))
    return Cost(max(held.values()), sent, seconds)


def _computing(step: PlanStep, plan: Plan, profile: MachineProfile, work: float) -> float:
    workers, node = step.workers, step.node
    if isinstance(workers, Blocks):
        share = workers.largest() / max(1, math.prod(workers.shape))
        busy = sum(1 for rank in workers.ranks if 0 not in workers.local_shape(rank))
    else:
        share, busy = 1.0, plan.base.size
    touched = sum(value.nbytes for value in (*node.arguments, *node.outputs)) if node.key not in VIEWS else 0
    seconds = profile.call + profile.speeds["bytes"].seconds(touched * share, busy)
    return seconds + profile.speeds[_kind(node)].seconds(work * share, busy)


def _kind(node: Node) -> str:
    """The kind of the speed of a node's floating-point operations."""
    if node.key not in CONVOLUTIONS:
        return "product"
    weight = node.inputs[1]
    return f"{'conv' if weight.shape[1] > 1 else 'depthwise'}{len(weight.shape) - 2}d"


def received_within(step: PlanStep) -> tuple[int, int]:
    """Bytes that a worker receives within a layer in the forward pass, and the number of exchanges.

    They are halos, sums of moments, keys and values.
    """
    node, workers = step.node, step.workers
    if not isinstance(workers, Blocks) or not isinstance(node.target, torch.nn.Module):
        return 0, 0
    split = [d for d, p in enumerate(workers.splits) if p > 1]
    if node.key == "MultiheadAttention":
        rows = len(workers.splits) - (2 if node.module.batch_first else 3)
        p = workers.splits[rows] if rows >= 0 else 1
        return 2 * (p - 1) * workers.largest() * node.arguments[0].dtype.itemsize, p > 1
    kernel = getattr(node.module, "kernel_size", None)
    space = space_of(node.module)
    if kernel is None or space is None:  # Unfold and Fold read whole images
        return 0, bool(split) and isinstance(node.module, _SUM_MOMENTS)
    x = node.arguments[0]
    first = len(x.shape) - space
    of_block = [-(-n // p) for n, p in zip(x.shape, workers.splits, strict=True)]
    halo = 0
    for d in split:
        if d >= first:
            size = kernel if isinstance(kernel, int) else kernel[d - first]
            halo += (size - 1) * math.prod(n for e, n in enumerate(of_block) if e != d)
    return halo * x.dtype.itemsize, sum(d >= first for d in split)


def workers_of(step: PlanStep, plan: Plan) -> tuple[int, ...]:
    """The ranks that compute a step."""
    return step.workers.ranks if isinstance(step.workers, Blocks) else plan.base.ranks


def _bytes_of_ranks(value: Value, place: Placement, plan: Plan) -> dict[int, int]:
    if isinstance(place, Blocks):
        return {rank: math.prod(place.local_shape(rank)) * value.dtype.itemsize for rank in place.ranks}
    return dict.fromkeys(plan.base.ranks, value.nbytes)
