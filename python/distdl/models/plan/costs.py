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
from distdl.models.plan.planning import Plan, PlanStep, Transfer, transfers_of
from distdl.models.plan.step_memory import StepMemory
from distdl.models.plan.training import Training
from distdl.models.rules.windows import CONVOLUTIONS

BUCKET = 1 << 20
"""Bytes of parameters that travel together, at least."""
_SMALL = 8192  # bytes of a message that travels beside the vote on its call
_DIRECT = 8  # ranks that send to each other directly


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
    seconds = machine.transfer(2 * away, ranks, _messages(ranks, BUCKET) * -(-parameters // BUCKET))
    seconds += machine.transfer(0, ranks, 2 * _rounds_of_vote(ranks))  # at the beginning and the end of the call
    for step, transfers in zip(plan.steps, plan.transfers(), strict=True):
        sent += 2 * sum(transfer.sent for transfer in transfers)
        sent += 2 * received_within(step)[0] * len(workers_of(step, plan))
        seconds += _of_step(step, transfers, plan, machine, works)
    return Cost(fullest_rank(plan, works, training).fullest, sent, seconds)


def seconds_of(steps: Sequence[PlanStep], plan: Plan, machine: Machine, works: Mapping[Node, NodeWork]) -> float:
    """The time of some steps in a step of training."""
    described = zip(steps, transfers_of(steps), strict=True)
    return sum(_of_step(step, transfers, plan, machine, works) for step, transfers in described)


def _of_step(
    step: PlanStep, transfers: Sequence[Transfer], plan: Plan, machine: Machine, works: Mapping[Node, NodeWork]
) -> float:
    ranks, in_node = plan.base.size, machine.ranks_per_node
    leaving, staying = list[Transfer](), list[Transfer]()
    for transfer in (each for each in transfers if each.counts):
        (leaving if ranks > in_node and transfer.leaves_nodes(in_node) else staying).append(transfer)
    seconds = _of_transfers(leaving, ranks, machine) + _of_transfers(staying, min(ranks, in_node), machine)
    if ranks > in_node:  # all ranks vote in the backward pass
        seconds += machine.transfer(0, ranks, len(staying) * _rounds_of_vote(ranks))
    within, exchanges = received_within(step)
    together = ranks if not within else 2  # all ranks add moments; others exchange with neighbors
    seconds += machine.transfer(2 * within, ranks, _messages(together, within // _neighbors(step)) * exchanges)
    return seconds + _computing(step, plan, machine, works[step.node])


def _neighbors(step: PlanStep) -> int:
    """The number of neighbors that a worker has in space, but for those at corners; at least 1."""
    splits = step.workers.splits[2:] if isinstance(step.workers, Blocks) else ()
    return max(1, sum(min(count - 1, 2) for count in splits))


def _of_transfers(transfers: Sequence[Transfer], ranks: int, machine: Machine) -> float:
    sizes = [transfer.received // max(1, transfer.senders) for transfer in transfers]
    if ranks > machine.ranks_per_node and sizes:  # at once, but for the votes of the backward pass: see Program
        messages = _messages(2, max(sizes)) + (len(sizes) - 1) * _rounds_of_vote(ranks)
    else:
        messages = sum(_messages(2, size) for size in sizes)
    return machine.transfer(2 * sum(transfer.received for transfer in transfers), ranks, messages)


def _messages(ranks: int, size: int) -> int:
    """How many messages follow one another in an exchange of messages of some bytes, forward and backward.

    Small data travels at once, and in the backward pass beside a vote. Before large data, the receiver is asked.
    """
    is_large = size > _SMALL
    rounds = 1 if ranks <= _DIRECT else math.ceil(math.log2(ranks))  # a tree of MPI
    votes = _rounds_of_vote(ranks) if is_large or ranks > _DIRECT else 0
    return 2 * rounds * (3 if is_large else 1) + votes


def _rounds_of_vote(ranks: int) -> int:
    return max(1, math.ceil(math.log(ranks, _DIRECT) - 1e-9)) if ranks > 1 else 0


def _computing(step: PlanStep, plan: Plan, machine: Machine, work: NodeWork) -> float:
    workers, node = step.workers, step.node
    if isinstance(workers, Blocks):
        share = step.overlap * workers.largest() / max(1, math.prod(workers.shape))
        busy = math.prod(sum(size > 0 for size in sizes) for sizes in workers.block_sizes)
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
