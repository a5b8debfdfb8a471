"""The way of a tensor through grids of workers in which its transformed dimensions are whole, one after the other.

Geometry alone: neither tensors nor communication.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]

# An exchange costs as much as moving so many elements: of small tensors the number of exchanges counts.
_ELEMENTS_FOR_A_MESSAGE = 4096


@dataclass(frozen=True)
class Stage:
    """A grid of workers, of which the first ones of the partition stand in it, and what they transform there.

    Attributes:
        shape: the number of workers along each dimension.
        dims: the dimensions that are transformed; one worker has them whole.
    """

    shape: Shape
    dims: Shape


@dataclass(frozen=True)
class Task:
    """Which dimensions of a tensor are transformed, and what is known of their order.

    Attributes:
        dims: the transformed dimensions.
        first, last: the dimension that has to be transformed before all others, or after them.
        before, after: the shape of the tensor as far as the transforms read it, and the shape of the result.
    """

    dims: Shape
    first: int | None
    last: int | None
    before: Shape
    after: Shape

    def ready(self, left: frozenset[int], whole: frozenset[int]) -> frozenset[int]:
        """The remaining dimensions that can be transformed in a grid in which some dimensions are whole."""
        now = left & whole
        if self.first in left and self.first not in now:
            return frozenset()
        return now - {self.last} if now != left and self.last in now else now

    def extents(self, left: frozenset[int]) -> Shape:
        """The shape of the tensor while some dimensions are left to be transformed."""
        return tuple(n if d in left else m for d, (n, m) in enumerate(zip(self.before, self.after, strict=True)))


@dataclass(frozen=True)
class _Route:
    cost: int
    stages: tuple[Stage, ...]


def plan(task: Task, shape: Shape, result: Shape | None, same_workers: bool = True) -> list[Stage]:
    """The stages of the cheapest way; between two of them the tensor is exchanged.

    The cost of an exchange is the largest block that a worker has before or behind it. Of two ways that leave no worker
    idle the one with fewer exchanges is the cheaper one.

    Args:
        task: what to transform.
        shape: the grid of the input, the first stage.
        result: the grid of the last stage; None if the result may stay where the last transform is.
        same_workers: whether the grids of input and result have the same workers in the same order.
    """
    workers = math.prod(shape)

    @functools.cache
    def cheapest(grid: Shape, left: frozenset[int], at_start: bool) -> _Route:
        done = task.ready(left, _whole(grid))
        rest = left - done
        here = Stage(grid, tuple(sorted(done)))
        extents = task.extents(rest)
        if not rest and (result is None or (grid == result and (same_workers or not at_start))):
            return _Route(0, (here,))
        if result is not None and task.ready(rest, _whole(result)) == rest:
            end = Stage(result, tuple(sorted(rest)))
            return _Route(_cost(extents, grid, result), (here, end))
        routes = []
        for dims in _subsets(rest):
            if task.ready(rest, dims) == dims:
                to = best_grid(workers, extents, dims, grid)
                further = cheapest(to, rest, False)
                routes.append(_Route(_cost(extents, grid, to) + further.cost, (here, *further.stages)))
        return min(routes, key=lambda route: (route.cost, len(route.stages)))

    return _with_neighbors(task, cheapest(shape, frozenset(task.dims), True).stages)


def largest_blocks(task: Task, stages: Sequence[Stage]) -> Iterator[Shape]:
    """The largest block of a worker behind each stage."""
    left = frozenset(task.dims)
    for stage in stages:
        left -= set(stage.dims)
        yield tuple(-(-n // p) for n, p in zip(task.extents(left), stage.shape, strict=True))


def _with_neighbors(task: Task, stages: Sequence[Stage]) -> list[Stage]:
    """The same stages, of which each later one also transforms the dimensions behind its own if it can.

    Dimensions that are neighbors in memory are transformed together in less time than on their own: so ``ifftn`` of
    columns transforms them, and then the other dimensions at once. What travels stays the same.
    """
    dims = [set(stage.dims) for stage in stages]
    for i, j in itertools.combinations(range(len(stages)), 2):
        for d in sorted(dims[i] - {task.first, task.last}):
            same_size, ends = task.before[d] == task.after[d], any(task.last in earlier for earlier in dims[:j])
            if d - 1 in dims[j] and stages[j].shape[d] == 1 and same_size and not ends:
                dims[i].remove(d)
                dims[j].add(d)
    return [Stage(stage.shape, tuple(sorted(own))) for stage, own in zip(stages, dims, strict=True)]


def best_grid(workers: int, extents: Sequence[int], whole: frozenset[int], like: Shape) -> Shape:
    """A grid in which some dimensions are whole, with the smallest largest block, and no worker without elements.

    Of several such grids it is the one that has as many workers as another grid along most dimensions, and more workers
    along earlier dimensions.
    """
    room = tuple(1 if d in whole else max(n, 1) for d, n in enumerate(extents))
    for count in range(workers, 0, -1):
        grids = list(_grids(count, room))
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


def _grids(workers: int, room: Shape) -> Iterator[Shape]:
    """All grids of so many workers with at most as many along each dimension as there is room."""
    if not room:
        if workers == 1:
            yield ()
        return
    for p in range(1, min(workers, room[0]) + 1):
        if workers % p == 0:
            yield from ((p, *others) for others in _grids(workers // p, room[1:]))


def _whole(grid: Shape) -> frozenset[int]:
    return frozenset(d for d, p in enumerate(grid) if p == 1)


def _subsets(dims: frozenset[int]) -> Iterator[frozenset[int]]:
    """All but the empty one."""
    ordered = sorted(dims)
    for size in range(1, len(ordered) + 1):
        yield from map(frozenset, itertools.combinations(ordered, size))


def _largest_block(extents: Sequence[int], grid: Shape) -> int:
    return math.prod(-(-n // p) for n, p in zip(extents, grid, strict=True))


def _cost(extents: Sequence[int], source: Shape, target: Shape) -> int:
    return _ELEMENTS_FOR_A_MESSAGE + max(_largest_block(extents, source), _largest_block(extents, target))
