"""Bring parameters to the workers in buckets, each just before its first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from distdl.models.capture.recording import Value
from distdl.models.plan.costs import BUCKET
from distdl.models.plan.planning import PlanStep
from distdl.models.plan.redistribution import Arrival
from distdl.models.run.steps import Step, before_checkpoint
from distdl.parameters.layout import Layout
from distdl.parameters.transport import ParameterTransport


def with_transports(
    steps: Sequence[Step],
    parameters: Mapping[int, Value],
    reached: Mapping[Value, frozenset[int]],
    layouts: Mapping[str, Layout],
) -> list[Step]:
    """The steps, with transports of parameters just before their first use.

    So backward passes send the gradients of a bucket away once they are complete, before gradients of earlier buckets
    are computed. Gradients of parameters that travelled at the beginning would all return at the end.

    Args:
        parameters: the parameters, by their slots.
        reached: the results that have a derivative by a parameter.
    """
    extended = [*steps]
    travel = {slot: value for slot, value in parameters.items() if layouts[value.name].replicas > 1}
    for place, slots in reversed(_buckets(steps, travel, reached)):
        transport = ParameterTransport([layouts[parameters[slot].name] for slot in slots])
        place = before_checkpoint(extended, place)
        while place and isinstance(extended[place - 1].run, Arrival):
            place -= 1
        extended.insert(place, Step(ParameterStep(transport), tuple(slots), tuple(slots)))
    return extended


class ParameterStep:
    """Brings the parameters of a bucket to the workers.

    Attributes:
        beside_vote: see :meth:`ParameterTransport.beside_vote`.
    """

    def __init__(self, transport: ParameterTransport) -> None:
        self._transport, self.beside_vote = transport, transport.beside_vote

    def __call__(self, *parameters: torch.Tensor) -> object:
        used = self._transport(parameters)
        return used if len(used) > 1 else used[0]


def _buckets(
    steps: Sequence[Step], parameters: Mapping[int, Value], reached: Mapping[Value, frozenset[int]]
) -> list[tuple[int, list[int]]]:
    """The places of the steps before which parameters travel, and the slots of the parameters.

    Parameters of a bucket have one dtype, and the same results have a derivative by them: a loss of some of the results
    gives all of them a gradient or none, as in one process, and no zeros to parameters that it does not depend on.
    """
    buckets: list[tuple[int, list[int]]] = []
    last: dict[object, list[int]] = {}  # of each kind
    waiting = dict(parameters)
    for place, reads in enumerate([*(step.reads for step in steps), parameters]):
        needed: dict[object, list[int]] = {}
        for slot in dict.fromkeys(slot for slot in reads if slot in waiting):
            value = waiting.pop(slot)
            needed.setdefault((value.dtype, reached.get(value, frozenset())), []).append(slot)
        for kind, slots in needed.items():
            if kind not in last or sum(parameters[slot].nbytes for slot in last[kind]) >= BUCKET:
                last[kind] = []
                buckets.append((place, last[kind]))
            last[kind] += slots
    return buckets


def results_reached(steps: Sequence[PlanStep], results: Sequence[object]) -> dict[Value, frozenset[int]]:
    """The numbers of the results that have a derivative by a value; none for values that are left out."""
    reached: dict[Value, frozenset[int]] = {}
    for i, value in enumerate(results):
        if isinstance(value, Value) and value.is_differentiable:
            reached[value] = reached.get(value, frozenset()) | {i}
    for step in reversed(steps):
        outputs = (reached.get(value, frozenset()) for value in step.node.outputs if value.is_differentiable)
        by_node = frozenset[int]().union(*outputs)
        for value in step.node.inputs if by_node else ():
            reached[value] = reached.get(value, frozenset()) | by_node
    return reached
