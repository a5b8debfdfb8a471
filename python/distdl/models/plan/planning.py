"""Plan a recorded computation: where each value is, which workers compute each node, and what they have to receive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distdl.models.capture.recording import Node, Recording, Value
from distdl.models.operations.operation import Operation, Workers
from distdl.models.operations.placement import REPLICATED, Blocks, IntervalsByDim, Placement
from distdl.models.plan.parameter_splits import owned_blocks, regions_of
from distdl.models.plan.received import from_other_nodes, received_elements, senders_to
from distdl.models.plan.redistribution import ReadRegions, Redistribution
from distdl.models.plan.requested import Request
from distdl.models.plan.rule_lookup import operations_of
from distdl.models.plan.worker_choice import WorkerChoice
from distdl.parameters.layout import Layout
from distdl.partitions.boxes import slices_within
from distdl.partitions.grid import Grid


class Transfer(NamedTuple):
    """A value that is redistributed.

    Attributes:
        counts: the elements that each rank receives from others.
        source, regions: where the value is, and what workers read of it.
    """

    value: Value
    counts: Mapping[int, int]
    source: Placement
    regions: ReadRegions

    @property
    def received(self) -> int:
        """The most bytes that a rank receives."""
        return max(self.counts.values(), default=0) * self.value.dtype.itemsize

    @property
    def sent(self) -> int:
        """The bytes that all ranks send."""
        return sum(self.counts.values()) * self.value.dtype.itemsize

    @property
    def senders(self) -> int:
        """The number of ranks that send to one of those that receive most."""
        if not self.counts:
            return 0
        return senders_to(max(self.counts, key=self.counts.__getitem__), self.source, self.regions, self.value.shape)

    def leaves_nodes(self, ranks_per_node: int) -> bool:
        """Whether ranks receive from other nodes, of so many ranks that follow each other; by those of two nodes."""
        first = [*self.counts][: 2 * ranks_per_node]
        return any(from_other_nodes(r, self.source, self.regions, self.value.shape, ranks_per_node) for r in first)


@dataclass(frozen=True)
class PlanStep:
    """A node with its workers.

    Attributes:
        operation: the operation as its rule describes it.
        workers: the blocks that workers compute; REPLICATED if each worker computes everything.
        input_regions: for each input the regions that workers read; None where they have them already.
        sources: the placements of the inputs.
        overlap: how many times the elements of their blocks workers compute.
    """

    node: Node
    operation: Operation
    workers: Placement
    input_regions: tuple[ReadRegions | None, ...]
    sources: tuple[Placement, ...]
    overlap: float = 1.0


def transfers_of(steps: Iterable[PlanStep]) -> Iterator[list[Transfer]]:
    """The values that are redistributed for each step."""
    brought: set[tuple[Value, ReadRegions]] = set()
    for step in steps:
        transfers: list[Transfer] = []
        for value, regions, source in zip(step.node.inputs, step.input_regions, step.sources, strict=True):
            if regions is not None and (value, regions) not in brought:
                brought.add((value, regions))
                transfers.append(Transfer(value, received_elements(source, regions, value.shape), source, regions))
        yield transfers


class Plan:
    """The placements of all values of a recording. Every rank makes the same plan, without communication.

    Args:
        base: the workers.
        inputs: the placements of the inputs.
        fallback: "gather" lets one worker compute operations that no rule splits.
        as_sequential: whether to draw the random numbers of one process.
        requested: grids and words of modules, by patterns of their names.
        layouts: of the parameters that live in blocks, by name.

    Raises:
        NotImplementedError: that lists every call without a rule.
    """

    def __init__(
        self,
        recording: Recording,
        base: Grid,
        inputs: Sequence[Placement],
        fallback: str = "error",
        as_sequential: bool = False,
        requested: Mapping[str, Request] | None = None,
        layouts: Mapping[str, Layout] | None = None,
    ) -> None:
        self.base, self.recording, self._inputs, self._has_requests = base, recording, inputs, bool(requested)
        values = dict.fromkeys(value for node in recording.nodes for value in node.inputs)
        in_blocks = {value: layouts[value.name] for value in values if value.name in layouts} if layouts else {}
        self.parameters = {value: owned_blocks(layout) for value, layout in in_blocks.items()}
        self._read_in_place = {value: regions_of(layout) for value, layout in in_blocks.items()}
        self._in_blocks = {*self.parameters}  # and their parts
        self.choice = WorkerChoice(base, requested or {}, self._in_blocks)
        self.placements: dict[Value, Placement] = dict(zip(recording.inputs, inputs, strict=True))
        self.steps: list[PlanStep] = []
        self.overlaps: dict[Value, IntervalsByDim] = {}  # of values that workers have more of than their blocks
        operations, self.gathered = operations_of(recording, fallback, as_sequential)
        for node, operation in zip(recording.nodes, operations, strict=True):
            self._place(node, operation)

    def _place(self, node: Node, operation: Operation) -> None:
        sources, specs = tuple(map(self.placement, node.inputs)), operation.input_specs
        if all(source is REPLICATED or spec is None for source, spec in zip(sources, specs, strict=True)):
            self.steps.append(PlanStep(node, operation, REPLICATED, (None,) * len(sources), sources))
            self.placements.update(dict.fromkeys(node.outputs, REPLICATED))
            return
        operation, workers = self.choice.choose(node, operation, sources)
        specs = operation.input_specs
        input_regions: list[ReadRegions | None] = []
        for value, spec, source in zip(node.inputs, specs, sources, strict=True):
            regions = None
            if spec is not None and not (source is REPLICATED and all(dim is None for dim in spec)):
                regions = ReadRegions.of(workers, spec)
            input_regions.append(regions if self._is_needed(value, source, regions) else None)
        self.steps.append(PlanStep(node, operation, workers, tuple(input_regions), sources))
        self.placements.update(zip(node.outputs, self._results(node, operation, workers), strict=True))
        if node.key == "unpack" and node.inputs[0] in self._in_blocks:
            self._in_blocks.update(node.outputs)

    def refuse_unfollowed(self) -> None:
        """Refuse requests that no operation follows; see :meth:`WorkerChoice.refuse_unfollowed`."""
        moved: dict[str, Node] = {}
        in_place: set[str] = set()
        for step in self.steps:
            for value, regions in zip(step.node.inputs, step.input_regions, strict=True):
                if value in self.parameters and regions is None:
                    in_place.add(value.name)
                elif value in self.parameters:
                    moved.setdefault(value.name, step.node)
        self.choice.refuse_unfollowed({name: node for name, node in moved.items() if name not in in_place})

    def blocks_of(self, value: Value) -> Blocks:
        """The blocks of a value; that of the first worker, if each has the whole."""
        place = self.placement(value)
        return place if isinstance(place, Blocks) else Blocks.of_one(self.base.ranks[0], value.shape)

    def _is_needed(self, value: Value, source: Placement, regions: ReadRegions | None) -> bool:
        in_place = self._read_in_place.get(value)
        if regions is None or (in_place is not None and in_place.are_same(regions, value.shape)):
            return False
        return Redistribution.is_needed(source, regions, value.shape)

    def transfers(self) -> Iterator[list[Transfer]]:
        """The values that are redistributed for each step, and the elements that each rank receives of them."""
        return transfers_of(self.steps)

    def placement(self, value: Value) -> Placement:
        """The placement of a value; buffers, constants, and parameters that are not in blocks, are replicated."""
        return self.placements.get(value, self.parameters.get(value, REPLICATED))

    def blocks_within(self) -> dict[Value, tuple[slice, ...]]:
        """This rank's block of each value of which it has more."""
        me, blocks = self.base.me, {}
        for value in self.overlaps:
            place = self.placement(value)
            if isinstance(place, Blocks) and (own := place.block(me)) is not None:
                blocks[value] = slices_within(own, place.box_among(self.overlaps[value], me))
        return blocks

    def result_placement(self, value: Value) -> Placement:
        """The placement in which the model returns a value; REPLICATED if every rank gets the whole of it.

        Without requests a result with as many dimensions as the base, or else as an input, is placed like it, since
        what follows takes it for such a tensor. Others stay where they are if they are split; but the base says
        whether samples are split.
        """
        place, base = self.placement(value), self.base
        if not value.shape:
            return REPLICATED
        if self._has_requests:
            return place if isinstance(place, Blocks) else Blocks.of_one(base.ranks[0], value.shape)
        inputs = [*zip(self.recording.inputs, self._inputs, strict=True)]
        like = [(len(base.shape), base.ranks, base.shape)]
        like += [(len(x.shape), at.ranks, at.splits) for x, at in inputs if isinstance(at, Blocks)]
        for dims, ranks, splits in like:
            if dims == len(value.shape):
                is_there = isinstance(place, Blocks) and (place.ranks, place.splits) == (ranks, splits)
                return place if is_there else Blocks.balanced(ranks, splits, value.shape)
        if not isinstance(place, Blocks) or any(len(x.shape) == len(value.shape) for x, _ in inputs):
            return REPLICATED
        counts_samples = any(x.shape[:1] == value.shape[:1] and len(x.shape) == len(base.shape) for x, _ in inputs)
        own = place.splits[1:] if counts_samples and base.shape[0] == 1 else place.splits
        return REPLICATED if max(own, default=1) == 1 else place

    def _results(self, node: Node, operation: Operation, workers: Blocks) -> list[Blocks]:
        if operation.placements is not None:
            placements = operation.placements(Workers(workers.grid(self.base), workers, self.base.me, self.base))
            return list(placements) if isinstance(placements, list) else [placements] * len(node.outputs)
        if len(workers.ranks) == 1:  # results may have different numbers of dimensions
            return [Blocks.of_one(workers.ranks[0], value.shape) for value in node.outputs]
        results = []
        for value in node.outputs:
            sizes_and_whole = zip(workers.block_sizes, value.shape, strict=True)
            block_sizes = (sizes if len(sizes) > 1 or sum(sizes) == n else (n,) for sizes, n in sizes_and_whole)
            results.append(Blocks(workers.ranks, tuple(block_sizes)))
        return results
