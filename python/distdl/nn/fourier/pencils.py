"""Pencil decompositions of Fourier transforms: grids of workers in each of which some dimensions are not split.

A dimension is transformed in a grid that does not split it; exchanges lead from grid to grid. Geometry only: neither
tensors nor communication.

For example, a tensor of 64 x 64 x 64 in blocks over a grid (2, 2, 1) has two stages: Stage((2, 2, 1), (2,)) transforms
the last dimension of blocks of 32 x 32 x 64, and after an exchange Stage((1, 1, 4), (0, 1)) transforms the others of
blocks of 64 x 64 x 16.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from distdl.partitions.boxes import boxes_of

Extents: TypeAlias = tuple[int, ...]

# The latency of an exchange, as the number of elements that travel in this time.
_LATENCY_IN_ELEMENTS = 4096


@dataclass(frozen=True)
class Stage:
    """A grid of the first workers of a partition (others may be idle), and the dimensions that they transform there.

    Attributes:
        shape: the number of workers along each dimension.
        dims: the transformed dimensions, which are whole.
    """

    shape: Extents
    dims: Extents


@dataclass(frozen=True)
class Task:
    """The dimensions of a tensor to transform, and constraints on their order.

    Attributes:
        dims: the transformed dimensions.
        first, last: the dimension that must be transformed before all others (of rfft), or after them (of irfft).
        before, after: the shape of the input, cropped to the sizes of the transforms, and of the result.
    """

    dims: Extents
    first: int | None
    last: int | None
    before: Extents
    after: Extents

    def ready(self, remaining: frozenset[int], whole: frozenset[int]) -> frozenset[int]:
        """The remaining dimensions that can be transformed in a grid in which some dimensions are whole."""
        now = remaining & whole
        if self.first in remaining and self.first not in now:
            return frozenset()
        is_too_early = self.last in now and now != remaining
        return now - {self.last} if is_too_early else now

    def extents(self, remaining: frozenset[int]) -> Extents:
        return tuple(n if d in remaining else m for d, (n, m) in enumerate(zip(self.before, self.after, strict=True)))


@dataclass(frozen=True)
class _Route:
    cost: int
    stages: tuple[Stage, ...]


def plan(task: Task, shape: Extents, result: Extents | None, same_workers: bool = True) -> list[Stage]:
    """The stages of the cheapest route; the tensor is exchanged between stages.

    The cost of an exchange is its latency and the largest block of a worker before or after it. Of routes that cost the
    same, the one with fewer exchanges is taken.

    Args:
        shape: the grid of the input, the first stage.
        result: the grid of the last stage; None if the result may stay in the grid of the last transform.
        same_workers: whether the grids of input and result have the same workers in the same order.
    """
    workers = math.prod(shape)

    @functools.cache
    def cheapest(grid: Extents, remaining: frozenset[int], at_start: bool) -> _Route:
        now = task.ready(remaining, _whole(grid))
        then = remaining - now
        here = Stage(grid, tuple(sorted(now)))
        extents = task.extents(then)
        if not then and (result is None or (grid == result and (same_workers or not at_start))):
            return _Route(0, (here,))
        if result is not None and task.ready(then, _whole(result)) == then:
            end = Stage(result, tuple(sorted(then)))
            return _Route(_cost(extents, grid, result), (here, end))
        routes = []
        for dims in _subsets(then):
            if task.ready(then, dims) == dims:
                to = best_grid(workers, extents, dims, grid)
                continuation = cheapest(to, then, False)
                routes.append(_Route(_cost(extents, grid, to) + continuation.cost, (here, *continuation.stages)))
        return min(routes, key=lambda route: (route.cost, len(route.stages)))

    return _with_neighbors(task, cheapest(shape, frozenset(task.dims), True).stages)


def largest_blocks(task: Task, stages: Sequence[Stage]) -> Iterator[Extents]:
    """The largest block of a worker after each stage."""
    remaining = frozenset(task.dims)
    for stage in stages:
        remaining -= set(stage.dims)
        yield tuple(-(-n // p) for n, p in zip(task.extents(remaining), stage.shape, strict=True))


def _with_neighbors(task: Task, stages: Sequence[Stage]) -> list[Stage]:
    """The same stages, but later stages also transform the dimension after their own, where possible.

    One call that transforms two dimensions which are neighbors in memory is faster than two calls. The exchanges stay
    the same.
    """
    dims = [set(stage.dims) for stage in stages]
    for i, j in itertools.combinations(range(len(stages)), 2):
        for d in sorted(dims[i] - {task.first, task.last}):
            same_size = task.before[d] == task.after[d]
            last_is_done = any(task.last in earlier for earlier in dims[:j])
            if d - 1 in dims[j] and stages[j].shape[d] == 1 and same_size and not last_is_done:
                dims[i].remove(d)
                dims[j].add(d)
    return [Stage(stage.shape, tuple(sorted(stage_dims))) for stage, stage_dims in zip(stages, dims, strict=True)]


def best_grid(workers: int, extents: Sequence[int], whole: frozenset[int], like: Extents) -> Extents:
    """The grid that leaves some dimensions whole and has the smallest largest block; no worker is without elements.

    Ties are broken by as many workers as in `like` along most dimensions, then by more workers along earlier
    dimensions. Of 4 workers on 3 x 64 x 64 elements, 3 have work if the last two dimensions are whole: (3, 1, 1).
    """
    most_workers = tuple(1 if d in whole else max(n, 1) for d, n in enumerate(extents))
    for count in range(workers, 0, -1):
        grids = list(boxes_of(count, most_workers))
        if grids:
            return min(
                grids,
                key=lambda grid: (
                    _largest_block(extents, grid),
                    -sum(p == q for p, q in zip(grid, like, strict=True)),
                    tuple(-p for p in grid),
                ),
            )
    return tuple(1 for _ in extents)


def _whole(grid: Extents) -> frozenset[int]:
    return frozenset(d for d, p in enumerate(grid) if p == 1)


def _subsets(dims: frozenset[int]) -> Iterator[frozenset[int]]:
    ordered = sorted(dims)
    for size in range(1, len(ordered) + 1):
        yield from map(frozenset, itertools.combinations(ordered, size))


def _largest_block(extents: Sequence[int], grid: Extents) -> int:
    return math.prod(-(-n // p) for n, p in zip(extents, grid, strict=True))


def _cost(extents: Sequence[int], source: Extents, target: Extents) -> int:
    return _LATENCY_IN_ELEMENTS + max(_largest_block(extents, source), _largest_block(extents, target))
