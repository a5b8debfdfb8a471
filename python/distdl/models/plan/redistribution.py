"""Redistribute a tensor: from its blocks, or from replicas on all ranks, to the regions that workers read."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distdl import operators
from distdl.models.capture.recording import Run
from distdl.models.operations.operation import InputSpec, Sharded, Slice
from distdl.models.operations.placement import Blocks, Placement, Replicated
from distdl.operators.dispatch import Applied, Started
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import Box, Interval
from distdl.partitions.grid import Grid

Corners = NDArray[np.int64]


@dataclass(frozen=True)
class ReadRegions:
    """The region of a tensor that each worker of an operation reads.

    Attributes:
        ranks: the workers.
        axes: for each axis of the workers' grid the dimension of the tensor that it shards; None for replicas.
        intervals: for each axis the (start, stop) that each worker along it reads; (0, 1) for None.
        slices: (start, stop) of dimensions that belong to no axis, where workers read only a slice of the dimension.
        periodic: the dimensions whose end is followed by their beginning.
    """

    ranks: tuple[int, ...]
    axes: tuple[int | None, ...]
    intervals: tuple[tuple[Interval, ...], ...]
    slices: tuple[tuple[int, Interval], ...] = ()
    periodic: tuple[int, ...] = ()

    @classmethod
    def of_blocks(cls, blocks: Blocks) -> ReadRegions:
        """The regions of workers that read a block each."""
        return cls(blocks.ranks, tuple(range(len(blocks.block_sizes))), blocks.intervals)

    @classmethod
    def of(cls, workers: Blocks, spec: InputSpec) -> ReadRegions:
        """The regions that workers read for their blocks."""
        sharded = {dim.dim: (d, dim) for d, dim in reversed([*enumerate(spec)]) if isinstance(dim, Sharded)}
        axes: list[int | None] = []
        intervals = []
        for axis, blocks in enumerate(workers.intervals):
            d, dim = sharded.get(axis, (None, None))
            axes.append(d)
            intervals.append(tuple((0, 1) if dim is None else dim.interval(*block) for block in blocks))
        slices = tuple((d, (dim.start, dim.stop)) for d, dim in enumerate(spec) if isinstance(dim, Slice))
        periodic = tuple(d for d, dim in enumerate(spec) if isinstance(dim, Sharded) and dim.periodic)
        return cls(workers.ranks, tuple(axes), tuple(intervals), slices, periodic)

    def are_blocks(self, source: Blocks) -> bool:
        """Whether each worker reads its own block. False may also mean that the grids differ."""
        return (
            self.ranks == source.ranks and self.intervals == source.intervals and self.axes == (*range(len(self.axes)),)
        )

    def are_same(self, other: ReadRegions, shape: Sequence[int]) -> bool:
        """Whether each worker reads the same of a tensor of this shape."""
        if self.ranks != other.ranks:
            return False
        return all(np.array_equal(a, b) for a, b in zip(self.boxes(shape), other.boxes(shape), strict=True))

    @classmethod
    def whole(cls, ranks: tuple[int, ...]) -> ReadRegions:
        """The whole tensor for each rank."""
        return cls(ranks, (None,), (((0, 1),) * len(ranks),))

    def box(self, rank: int, shape: Sequence[int]) -> Box | None:
        """The box that a rank reads of a tensor of this shape."""
        along = self._along.get(rank)
        if along is None:
            return None
        box = self.common(shape)
        for dim, interval in zip(self.axes, along, strict=True):
            if dim is not None:
                box[dim] = interval
        return tuple(box)

    def boxes(self, shape: Sequence[int]) -> tuple[Corners, Corners]:
        """The first and the last corners of the boxes that the workers read, in order."""
        starts, stops = (
            np.tile(corner, (len(self.ranks), 1)) for corner in np.array(self.common(shape)).reshape(-1, 2).T
        )
        first, last = corners(self.intervals)
        for axis, dim in enumerate(self.axes):
            if dim is not None:
                starts[:, dim], stops[:, dim] = first[:, axis], last[:, axis]
        return starts, stops

    @functools.cached_property
    def _along(self) -> dict[int, Box]:
        """The interval that each rank reads along each axis of the grid."""
        return dict(zip(self.ranks, itertools.product(*self.intervals), strict=True))

    def common(self, shape: Sequence[int]) -> list[Interval]:
        """The interval that all workers read, for each dimension that belongs to no axis."""
        slices = dict(self.slices)
        return [slices.get(d, (0, n)) for d, n in enumerate(shape)]


def corners(intervals: Sequence[Sequence[Interval]]) -> tuple[Corners, Corners]:
    """The first and the last corners of the boxes of all workers, row-major, with a column for each axis."""
    along = [np.array(each).reshape(-1, 2) for each in intervals]
    if not along:  # of a tensor without dimensions
        return np.zeros((1, 0), dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
    places = np.indices([len(each) for each in along]).reshape(len(along), -1)
    both = np.stack([each[place] for each, place in zip(along, places, strict=True)], axis=1)
    return both[..., 0], both[..., 1]


class Redistribution:
    """Brings the regions of a tensor to the workers that read them, from its blocks or from replicas on all ranks.

    Constructing and calling are collective over the ranks that constructed `like`.
    """

    def __init__(self, name: str, source: Placement, regions: ReadRegions, shape: Sequence[int], like: Grid) -> None:
        self._box = regions.box(like.me, shape)
        self._is_replicated = isinstance(source, Replicated)
        axis_of = {d: axis for axis, d in enumerate(regions.axes) if d is not None}
        replicas = [axis for axis, d in enumerate(regions.axes) if d is None]
        self._dim, self._inserted = len(shape), len(replicas)
        self._own: Box | None = None  # this rank's block, if each worker reads a part of its own
        self._is_cut = isinstance(source, Blocks) and self.is_within(source, regions, shape)
        if isinstance(source, Blocks) and self._is_cut:
            self._own = source.block(like.me)
        elif isinstance(source, Blocks):
            # Workers along an axis of replicas read the same of the tensor. So it gets a dimension of size 1 for each
            # such axis, before its own dimensions, and each worker along the axis reads the only element.
            x = like.related(source.ranks, [1] * len(replicas) + [*source.splits])
            common = regions.common(shape)
            wanted = [[*regions.intervals[axis]] for axis in replicas]
            wanted += [[*regions.intervals[axis_of[d]]] if d in axis_of else [common[d]] for d in range(len(shape))]
            workers = np.array(regions.ranks).reshape([len(along) for along in regions.intervals])
            ranks = workers.transpose(replicas + [axis_of[d] for d in sorted(axis_of)]).ravel()
            y = like.related(tuple(ranks.tolist()), [len(along) for along in wanted])
            periodic = [False] * len(replicas) + [d in regions.periodic for d in range(len(shape))]
            self._operator = operators.interval_exchange(name, x, y, wanted, periodic)

    @staticmethod
    @functools.lru_cache(maxsize=1024)  # deep models repeat a few operations
    def is_needed(source: Placement, regions: ReadRegions, shape: tuple[int, ...]) -> bool:
        """Whether the region of any rank differs from its block."""
        if isinstance(source, Blocks) and regions.are_blocks(source):
            return False
        starts, stops = regions.boxes(shape)
        if isinstance(source, Replicated):
            return bool((starts != 0).any() or (stops != np.array(shape)).any())
        if set(source.ranks) != set(regions.ranks):
            return True
        own = np.array([source.place_of[rank] for rank in regions.ranks])
        first, last = corners(source.intervals)
        return bool((starts != first[own]).any() or (stops != last[own]).any())

    @staticmethod
    def is_within(source: Placement, regions: ReadRegions, shape: Sequence[int]) -> bool:
        """Whether each worker reads a part of its own block, so that nothing travels."""
        if isinstance(source, Replicated) or set(source.ranks) != set(regions.ranks):
            return False
        starts, stops = regions.boxes(shape)
        own = np.array([source.place_of[rank] for rank in regions.ranks])
        first, last = corners(source.intervals)
        return bool((starts >= first[own]).all() and (stops <= last[own]).all())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """This worker's region; a tensor without elements on ranks that read nothing."""
        if self._is_replicated:
            return self._cut_out(x)
        if self._is_cut:
            return self._part(x)
        return self._without_inserted(self._operator(self._with_inserted(x)))

    @property
    def can_start(self) -> bool:
        """Whether it may be started: ranks send each other something. The same on all ranks."""
        return not (self._is_replicated or self._is_cut)

    def exchange_of(self, x: torch.Tensor) -> Applied:
        """The operator of a call that can be started, and the tensor that it takes."""
        return self._operator.core, self._with_inserted(x)

    def start(self, x: torch.Tensor) -> Started:
        """Begin to bring the regions, where anything travels."""
        return self._operator.start(self._with_inserted(x))

    def finish(self, started: Started) -> torch.Tensor:
        """This worker's region, as of a call."""
        return self._without_inserted(started.wait())

    def _with_inserted(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == self._dim:
            for _ in range(self._inserted):
                x = x.unsqueeze(0)
        return x

    def _without_inserted(self, y: torch.Tensor) -> torch.Tensor:
        if self._box is not None:
            for _ in range(self._inserted):
                y = y.squeeze(0)
        return y

    def _part(self, x: torch.Tensor) -> torch.Tensor:
        if self._box is None or self._own is None:
            return connected_empty([x])
        for d, ((start, stop), (first, last)) in enumerate(zip(self._box, self._own, strict=True)):
            if (start, stop) != (first, last):
                x = x.narrow(d, start - first, stop - start)
        return x

    def _cut_out(self, x: torch.Tensor) -> torch.Tensor:
        if self._box is None:
            return connected_empty([x])
        for d, (start, stop) in enumerate(self._box):
            n = x.shape[d]
            if start < 0 or stop > n:
                x = x.index_select(d, torch.arange(start, stop, device=x.device) % n)
            elif stop - start != n:
                x = x.narrow(d, start, stop - start)
        return x


class FromBlocks(Redistribution):
    """Ignores tensors of ranks without a block, such as copies of a parameter's block."""

    def __init__(self, name: str, source: Placement, regions: ReadRegions, shape: Sequence[int], like: Grid) -> None:
        super().__init__(name, source, regions, shape, like)
        self._has_block = isinstance(source, Blocks) and like.me in source.ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """This worker's region."""
        return super().__call__(x if self._has_block else connected_empty([x]))

    @property
    def can_start(self) -> bool:
        """Whether it may be started."""
        return False


class Arrival:
    """Ends a redistribution that was started. Parameters that are used next travel before, at the same time."""

    def __init__(self, redistribution: Redistribution) -> None:
        self._redistribution = redistribution

    def __call__(self, started: Started) -> torch.Tensor:
        """This worker's region."""
        return self._redistribution.finish(started)


def connected_empty(inputs: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A result without elements, connected with the inputs in the graph as the results of other ranks are."""
    result = inputs[0].new_zeros(0, dtype=dtype, layout=torch.strided)
    for tensor in inputs:
        if tensor.requires_grad:
            zero = zero_of(tensor)
            result = result + (zero.real if zero.is_complex() and not result.is_complex() else zero)
    return result


def brought(shape: Sequence[int], source: Placement, place: Placement | None, like: Grid) -> Run:
    """A function that brings a tensor to a place, or without one as a whole to all workers."""
    if isinstance(place, Blocks) and place != source:
        return Redistribution("distribute", source, ReadRegions.of_blocks(place), shape, like)
    if isinstance(source, Blocks) and not isinstance(place, Blocks):
        return FromBlocks("distribute", source, ReadRegions.whole(tuple(like.ranks)), shape, like)
    return lambda x: x
