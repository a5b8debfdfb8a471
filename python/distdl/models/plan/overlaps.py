"""Plan one exchange of halos for several operations: workers compute the overlap of their results more than once.

In place of an exchange before each convolution of a chain, workers receive the halo of all of them before the first,
and compute as much more of each result as the next convolution reads. It is what one process computes: nothing beyond
the ends of a result, where each convolution pads for itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from distdl.models.capture.recording import Value, values_in
from distdl.models.operations.operation import Sharded
from distdl.models.operations.placement import REPLICATED, Blocks, IntervalsByDim, Placement
from distdl.models.plan.box_steps import box_step, read_by
from distdl.models.plan.planning import Plan, PlanStep
from distdl.models.plan.redistribution import ReadRegions

Changes = tuple[dict[int, PlanStep], dict[Value, IntervalsByDim]]
"""The steps that change, by place, and what workers have of values of which they compute more than their blocks."""


class HaloChains:
    """The steps of a plan that workers can compute for more than their blocks.

    Args:
        plan: as planned. It is not changed.

    Attributes:
        exchanging: the places of those that exchange halos.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._in_blocks = [_inputs_in_blocks(plan, step) for step in plan.steps]  # none of other steps
        recording, outside = plan.recording, len(plan.steps)
        self._users: dict[Value, set[int]] = {}
        for place, step in enumerate(plan.steps):
            for value in step.node.inputs:
                self._users.setdefault(value, set()).add(place)
        looked_at = (value for look in recording.looks for value in look.values)
        for value in (*values_in(recording.results), *looked_at, *recording.written.values()):
            self._users.setdefault(value, set()).add(outside)
        self.exchanging = [place for place, inputs in enumerate(self._in_blocks) if inputs and self._exchanges(place)]

    def chained(self, first: int, last: int) -> Changes:
        """The changes if the steps from first to last exchange halos once where they can."""
        between = [place for place in range(first, last + 1) if self._in_blocks[place]]
        candidates = self._candidates(between)
        needed: dict[Value, IntervalsByDim] = {}
        chain: list[int] = []
        for place in reversed(between):
            result, inputs = self._plan.steps[place].node.outputs[0], self._values_in_blocks(place)
            wanted = self._wanted(result, needed, candidates)
            if wanted != self._own(result) or not candidates.isdisjoint(inputs):
                chain.append(place)
                for value in inputs:
                    needed[value] = _hull(needed.get(value, self._own(value)), self._reads(place, value, wanted))
        overlaps = {value: needed[value] for value in candidates if needed.get(value) not in (None, self._own(value))}
        changed = {}
        for place in sorted(chain):
            if not overlaps.keys().isdisjoint((*self._plan.steps[place].node.outputs, *self._values_in_blocks(place))):
                changed[place] = self._overlapping(place, needed, candidates)
        return changed, overlaps

    def _values_in_blocks(self, place: int) -> set[Value]:
        inputs = self._plan.steps[place].node.inputs
        return {inputs[i] for i in self._in_blocks[place]}

    def _own(self, value: Value) -> IntervalsByDim:
        place = self._plan.placement(value)
        assert isinstance(place, Blocks)
        return place.intervals

    def _wanted(
        self, value: Value, needed: Mapping[Value, IntervalsByDim], candidates: Collection[Value]
    ) -> IntervalsByDim:
        """The boxes of a result that workers compute: of a candidate what is needed, of others their blocks."""
        return needed.get(value, self._own(value)) if value in candidates else self._own(value)

    def _exchanges(self, place: int) -> bool:
        result = self._own(self._plan.steps[place].node.outputs[0])
        return any(
            _hull(self._own(value), self._reads(place, value, result)) != self._own(value)
            for value in self._values_in_blocks(place)
        )

    def _reads(self, place: int, value: Value, wanted: IntervalsByDim) -> IntervalsByDim:
        """The boxes that workers read of an input, for boxes of the result."""
        function = self._plan.steps[place].operation.box
        assert function is not None
        return tuple(
            along if len(along) == 1 else tuple(read_by(function, d, value.shape[d], box) for box in wanted[d])
            for d, along in enumerate(self._own(value))
        )

    def _candidates(self, between: Sequence[int]) -> set[Value]:
        """The results of steps that exchange halos, and of steps after them, which only the steps between use."""
        candidates: set[Value] = set()
        known = {*between}
        for place in between:
            result = self._plan.steps[place].node.outputs[0]
            follows = place in self.exchanging or not candidates.isdisjoint(self._values_in_blocks(place))
            if follows and self._users.get(result, set()).issubset(known):
                candidates.add(result)
        return candidates

    def _overlapping(self, place: int, needed: Mapping[Value, IntervalsByDim], within: Collection[Value]) -> PlanStep:
        """The step that computes what later steps need, from what earlier ones compute and what workers receive."""
        step, in_blocks = self._plan.steps[place], self._in_blocks[place]
        assert isinstance(step.workers, Blocks)
        inputs, result, regions = step.node.inputs, step.node.outputs[0], [*step.input_regions]
        for i in in_blocks:
            along = needed[inputs[i]]
            if inputs[i] not in within and along != self._own(inputs[i]):
                regions[i] = ReadRegions(step.workers.ranks, tuple(range(len(along))), along)
        wanted = self._wanted(result, needed, within)
        had = {i: needed[inputs[i]] for i in in_blocks}
        operation = replace(
            step.operation,
            make=functools.partial(box_step, step.node, step.operation, wanted, had),
            placements=None,
            received=lambda workers: 0,
        )
        overlap = _elements_of_largest(wanted) / _elements_of_largest(self._own(result))
        return replace(step, operation=operation, input_regions=tuple(regions), overlap=overlap)


def _inputs_in_blocks(plan: Plan, step: PlanStep) -> list[int]:
    """The places of the inputs in blocks of a step that workers can compute for any box; empty if they cannot."""
    node, operation, workers = step.node, step.operation, step.workers
    box = operation.box
    if box is None or not isinstance(workers, Blocks) or len(node.outputs) != 1:
        return []
    others = operation.draw, operation.received, *step.input_regions, operation.placements if not box.windows else None
    if any(other is not None for other in others) or not _is_like(plan.placement(node.outputs[0]), workers):
        return []
    if any(max(window.padding) >= window.reach() for window in box.windows.values()):
        return []  # outputs may depend on padding alone
    places = [i for i, source in enumerate(step.sources) if source is not REPLICATED]
    split = [d for d, along in enumerate(workers.splits) if along > 1]
    for i in places:
        spec = operation.input_specs[i]
        if (i and box.windows) or spec is None or not _is_like(step.sources[i], workers):
            return []
        if any(spec[d] != Sharded(d) for d in split):
            return []
    return places


def _is_like(source: Placement, workers: Blocks) -> bool:
    """Whether the same workers have blocks of both, none of which is empty."""
    if not isinstance(source, Blocks):
        return False
    is_same = (source.ranks, source.splits) == (workers.ranks, workers.splits)
    return is_same and not any(0 in sizes for sizes in (*source.block_sizes, *workers.block_sizes))


def _hull(first: IntervalsByDim, second: IntervalsByDim) -> IntervalsByDim:
    """The smallest intervals that contain both."""
    return tuple(
        tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(*along, strict=True))
        for along in zip(first, second, strict=True)
    )


def _elements_of_largest(boxes: IntervalsByDim) -> int:
    return math.prod(max(stop - start for start, stop in along) for along in boxes)
