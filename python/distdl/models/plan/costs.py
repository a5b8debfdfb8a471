"""Estimate the costs of a plan: memory, bytes that travel, and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdl.models.capture.node_work import NodeWork
from distdl.models.capture.recording import Node
from distdl.models.operations.placement import Blocks
from distdl.models.plan.exchanges import received_within, workers_of
from distdl.models.plan.machine import Machine
from distdl.models.plan.memory import fullest_rank
from distdl.models.plan.planning import Plan, PlanStep, Transfers, transfers_of
from distdl.models.plan.step_memory import StepMemory
from distdl.models.plan.training import Training
from distdl.models.rules.windows import CONVOLUTIONS


@dataclass(frozen=True)
class Cost:
    """Costs of a training step, forward and backward.

    Attributes:
        memory: of the fullest rank.
        sent: bytes that travel, of all ranks.
        seconds: the time of the step.
    """

    memory: StepMemory
    sent: int
    seconds: float


def cost(plan: Plan, machine: Machine, works: Mapping[Node, NodeWork], training: Training) -> Cost:
    """Estimate the costs of a training step by a plan.

    Args:
        works: the work of each node.
    """
    ranks = plan.base.size
    values = dict.fromkeys(value for step in plan.steps for value in step.node.inputs)
    travels = (value for value in values if value.name and value.is_differentiable and value not in plan.parameters)
    parameters = sum(value.nbytes for value in travels)
    away = parameters * (ranks - 1) // ranks
    sent = 2 * away * ranks
    seconds = 2 * machine.transfer(away, ranks)
    for step, transfers in zip(plan.steps, plan.transfers(), strict=True):
        sent += 2 * sum(sum(counts.values()) * value.dtype.itemsize for value, counts in transfers)
        sent += 2 * received_within(step)[0] * len(workers_of(step, plan))
        seconds += _of_step(step, transfers, plan, machine, works)
    return Cost(fullest_rank(plan, works, training).fullest, sent, seconds)


def seconds_of(steps: Sequence[PlanStep], plan: Plan, machine: Machine, works: Mapping[Node, NodeWork]) -> float:
    """The time of some steps in a step of training."""
    described = zip(steps, transfers_of(steps), strict=True)
    return sum(_of_step(step, transfers, plan, machine, works) for step, transfers in described)


def _of_step(
    step: PlanStep, transfers: Transfers, plan: Plan, machine: Machine, works: Mapping[Node, NodeWork]
) -> float:
    ranks, seconds = plan.base.size, 0.0
    for value, counts in transfers:
        received = max(counts.values(), default=0) * value.dtype.itemsize
        seconds += 2 * machine.transfer(received, ranks, bool(counts))
    within, exchanges = received_within(step)
    seconds += 2 * machine.transfer(within, ranks, exchanges)
    return seconds + _computing(step, plan, machine, works[step.node])


def _computing(step: PlanStep, plan: Plan, machine: Machine, work: NodeWork) -> float:
    workers, node = step.workers, step.node
    if isinstance(workers, Blocks):
        share = step.overlap * workers.largest() / max(1, math.prod(workers.shape))
        busy = sum(1 for rank in workers.ranks if 0 not in workers.local_shape(rank))
    else:
        share, busy = 1.0, plan.base.size
    is_view = not node.written and all(value in work.shares for value in node.outputs)
    touched = 0 if is_view else sum(value.nbytes for value in (*node.arguments, *node.outputs))
    seconds = machine.call + machine.seconds("bytes", touched * share, busy)
    seconds += machine.seconds(_kind(node), work.operations * share, busy)
    return seconds * (4 / 3 if node.checkpoint else 1)  # computed once more


def _kind(node: Node) -> str:
    """The kind of the speed of a node's floating-point operations."""
    if node.key not in CONVOLUTIONS:
        return "product"
    weight = node.inputs[1]
    return f"{'conv' if weight.shape[1] > 1 else 'depthwise'}{len(weight.shape) - 2}d"
