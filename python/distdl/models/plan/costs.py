"""Estimate the costs of a plan: memory, bytes that travel, and time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from distdl.models.capture.node_work import NodeWork
from distdl.models.capture.recording import Node
from distdl.models.operations.placement import Blocks
from distdl.models.plan.exchanges import received_within, workers_of
from distdl.models.plan.machine import Machine
from distdl.models.plan.memory import fullest_rank
from distdl.models.plan.planning import Plan, PlanStep
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
        for value, counts in transfers:
            size = value.dtype.itemsize
            sent += 2 * sum(counts.values()) * size
            seconds += 2 * machine.transfer(max(counts.values(), default=0) * size, ranks, bool(counts))
        within, exchanges = received_within(step)
        sent += 2 * within * len(workers_of(step, plan))
        seconds += 2 * machine.transfer(within, ranks, exchanges)
        seconds += _computing(step, plan, machine, works[step.node])
    return Cost(fullest_rank(plan, works, training).fullest, sent, seconds)


def _computing(step: PlanStep, plan: Plan, machine: Machine, work: NodeWork) -> float:
    workers, node = step.workers, step.node
    if isinstance(workers, Blocks):
        share = workers.largest() / max(1, math.prod(workers.shape))
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
