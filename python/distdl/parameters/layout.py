"""Layouts of parameters: the block that each worker uses, and the ranks on which it lives."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from distdl import _core
from distdl.partitions.boxes import Interval, balanced_box, box_shape, cut
from distdl.partitions.grid import Grid

LAYOUT_KINDS = ("owner", "sharded", "replicated")
OF_LAYERS, OF_MODELS = "owner", "replicated"
"""The kinds that layers of :mod:`distdl.nn`, and models of :func:`distdl.distribute`, have by default."""

_current_kind: ContextVar[str | None] = ContextVar("parameter_layout", default=None)


@contextmanager
def parameter_layout(kind: str) -> Iterator[None]:
    """Choose where layers and models that are made within keep their parameters. Results do not depend on it.

    Args:
        kind: where a block of a parameter lives that several workers use:

            - "owner", the default of layers: on the first of these workers. The block is broadcast when it is used, and
              gradients are summed there.
            - "sharded": each of the P workers has 1/P of the block, its gradient and the optimizer's state. The block
              is gathered when it is used, and its gradient is summed in shards (known as ZeRO-3, or FSDP).
            - "replicated", the default of :func:`distdl.distribute`: each of these workers has the block, as torch's
              utilities expect. Gradients are summed on all of them.

    Raises:
        ValueError: for another kind.

    Every rank of the layers inside has to use the same kind: otherwise constructing a layer raises ValueError on all.

    Example:
        >>> with distdl.parameter_layout("sharded"):
        ...     model = make_model(P_x)
    """
    if kind not in LAYOUT_KINDS:
        raise ValueError(f"parameter_layout: kind={kind!r}; it must be one of {', '.join(map(repr, LAYOUT_KINDS))}")
    token = _current_kind.set(kind)
    try:
        yield
    finally:
        _current_kind.reset(token)


def current_kind(default: str = OF_LAYERS) -> str:
    """The kind of layout of what is constructed now."""
    return _current_kind.get() or default


@dataclass(frozen=True)
class Layout:
    """How a whole tensor is spread over the workers of a grid.

    Dimension d of the tensor is cut into balanced blocks along axis ``axes[d]`` of the grid, or not cut if it is None.
    Workers whose places differ only along other axes use the same block.

    Attributes:
        shape: the shape of the whole tensor, as it is cut.
        axes: for each dimension of the tensor a different axis of the grid, or None.
        first_of: axes of the grid along which only the workers with index 0 use the tensor, e.g. a bias added once.
        kind: where a block lives that several workers use: see :func:`distdl.parameter_layout`.
        merged: (first, stop) of dimensions that are a single dimension of the tensor. So each worker has rows of its
            heads in the weights of queries, keys and values that follow each other: they are cut as (3, heads, size).

    For example, a tensor of shape (5, 3) has the axes (1, None) of a grid (2, 2). The workers at (0, 0) and (1, 0) use
    rows 0 to 2, the workers at (0, 1) and (1, 1) use rows 3 and 4. Worker (0, 0) owns rows 0 to 2, and (1, 0) nothing.
    If the kind is "sharded", (0, 0) owns two columns of these rows, and (1, 0) the third column.
    """

    grid: Grid
    shape: tuple[int, ...]
    axes: tuple[int | None, ...]
    first_of: tuple[int, ...] = ()
    kind: str = "owner"
    merged: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        axes = [axis for axis in (*self.axes, *self.first_of) if axis is not None]
        fit = not self.grid.known or all(0 <= axis < self.grid.dim for axis in axes)
        if len(self.axes) != len(self.shape) or len(set(axes)) < len(axes) or not fit:
            raise ValueError(
                f"a tensor of shape {list(self.shape)} is cut along axes {list(self.axes)}, and used only at index "
                f"0 along {list(self.first_of)}, of {self.grid}; it takes an axis or "
                "None for each dimension, and no axis twice"
            )

    def merge(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the tensor, or of a block, in a module."""
        if self.merged is None:
            return tuple(shape)
        first, stop = self.merged
        return (*shape[:first], math.prod(shape[first:stop]), *shape[stop:])

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor in a module."""
        return self.merge(self.shape)

    @functools.cached_property
    def replica_axes(self) -> tuple[int, ...]:
        """The axes of the grid along which blocks are replicated: workers use the same block."""
        return tuple(a for a in range(self.grid.dim) if a not in self.axes and a not in self.first_of)

    @property
    def is_split(self) -> bool:
        """Whether workers use different blocks."""
        return any(axis is not None for axis in self.axes)

    @functools.cached_property
    def replicas(self) -> int:
        """The number of workers that use the same block."""
        return math.prod(self.grid.shape[a] for a in self.replica_axes)

    @functools.cached_property
    def shard_dim(self) -> int | None:
        """The dimension along which a block is cut into shards; None if blocks are not sharded.

        It is dimension 0 if its extent is divisible, since shards are contiguous then; otherwise the longest.
        """
        if self.kind != "sharded" or self.replicas == 1 or not self.shape:
            return None
        if self.shape[0] % (self.parts_along(0) * self.replicas) == 0:
            return 0
        extents = [n // self.parts_along(d) for d, n in enumerate(self.shape)]
        return extents.index(max(extents))

    def parts_along(self, d: int) -> int:
        axis = self.axes[d]
        return 1 if axis is None or not self.grid.known else self.grid.shape[axis]

    def used(self, place: Sequence[int]) -> list[Interval] | None:
        """(start, stop) in each dimension of the block that the worker at a place uses; None without a block."""
        if any(place[a] for a in self.first_of):
            return None
        at = [0 if axis is None else place[axis] for axis in self.axes]
        return balanced_box(self.shape, [*map(self.parts_along, range(len(self.shape)))], at)

    def owned(self, place: Sequence[int]) -> list[Interval] | None:
        """(start, stop) in each dimension of the part that lives on the worker at a place; None without a part."""
        block, copy = self.used(place), self._copy(place)
        d = self.shard_dim
        if block is None or (copy > 0 and d is None and self.kind != "replicated"):
            return None
        if d is not None:
            start, stop = block[d]
            first, last = _core.balanced_block(stop - start, self.replicas, copy)
            block[d] = (start + first, start + last)
        return block

    def _copy(self, place: Sequence[int]) -> int:
        """The number of a worker among the replicas of its block."""
        copy = 0
        for a in self.replica_axes:
            copy = copy * self.grid.shape[a] + place[a]
        return copy

    @functools.cached_property
    def intervals(self) -> list[Interval] | None:
        """(start, stop) in each dimension of the part that lives on this rank; None without a part."""
        return self.owned(self.grid.place) if self.grid.active else None

    @functools.cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part that lives on this rank. Without a part, the first extent is 0."""
        return self._shape_of(self.intervals)

    @functools.cached_property
    def used_shape(self) -> tuple[int, ...]:
        """The shape of the block that this worker uses. Without a block, the first extent is 0."""
        return self._shape_of(self.used(self.grid.place) if self.grid.active else None)

    def _shape_of(self, intervals: Sequence[Interval] | None) -> tuple[int, ...]:
        return self.merge((0, *self.shape[1:]) if intervals is None else box_shape(intervals))

    def replica_ranks(self, place: Sequence[int]) -> tuple[int, ...]:
        """The ranks of the workers that use the same block as the worker at a place."""
        return self.grid.side_by_side(place, self.replica_axes)

    @functools.cached_property
    def owner_grid(self) -> Grid:
        """The first user of each block, in a grid from which a broadcast reaches all users."""
        return self.grid.first_along(self.replica_axes)

    @functools.cached_property
    def storage(self) -> tuple[Grid, list[list[Interval]]]:
        """The ranks that store each block once, as a grid like the tensor, and the intervals in each dimension."""
        if not self.grid.known:
            return self.grid, []
        along = [cut(n, self.parts_along(d)) for d, n in enumerate(self.shape)]
        d = self.shard_dim
        if d is not None:
            along[d] = [
                (start + first, start + last)
                for start, stop in along[d]
                for first, last in cut(stop - start, self.replicas)
            ]
        extents = [len(intervals) for intervals in along]
        ranks = [self._rank_at(_core.grid_index(extents, i)) for i in range(math.prod(extents))]
        return self.grid.related(ranks, extents), along

    def _rank_at(self, index: Sequence[int]) -> int:
        place, copy = [0] * self.grid.dim, 0
        for d, (axis, at) in enumerate(zip(self.axes, index, strict=True)):
            block = at
            if d == self.shard_dim:
                block, copy = divmod(at, self.replicas)
            if axis is not None:
                place[axis] = block
        return self.replica_ranks(place)[copy]
