"""Placements of tensors: in blocks on the workers of a grid, or replicated on each worker."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdl.partitions.boxes import Box, Interval, block_intervals, box_shape, cut
from distdl.partitions.grid import Grid

SizesByDim = tuple[tuple[int, ...], ...]
"""The sizes of the blocks along each dimension."""
IntervalsByDim = tuple[tuple[Interval, ...], ...]
"""(start, stop) for each worker along each dimension."""


@dataclass(frozen=True)
class Blocks:
    """A tensor in blocks on the workers of a grid with as many dimensions.

    Attributes:
        ranks: of the workers, row-major.
        block_sizes: the sizes of the blocks along each dimension.
    """

    ranks: tuple[int, ...]
    block_sizes: SizesByDim

    @classmethod
    def balanced(cls, ranks: Sequence[int], splits: Sequence[int], shape: Sequence[int]) -> Blocks:
        """Balanced blocks of a tensor; `splits` are their numbers along each dimension."""
        return cls(tuple(ranks), tuple(balanced_sizes(n, p) for n, p in zip(shape, splits, strict=True)))

    @classmethod
    def of_one(cls, rank: int, shape: Sequence[int]) -> Blocks:
        """A tensor that one rank has."""
        return cls((rank,), tuple((n,) for n in shape))

    @functools.cached_property
    def splits(self) -> tuple[int, ...]:
        """The number of workers along each dimension."""
        return tuple(map(len, self.block_sizes))

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return tuple(map(sum, self.block_sizes))

    @functools.cached_property
    def intervals(self) -> IntervalsByDim:
        """(start, stop) of the blocks along each dimension."""
        return tuple(tuple(block_intervals(sizes)) for sizes in self.block_sizes)

    @functools.cached_property
    def rank_at(self) -> dict[tuple[int, ...], int]:
        """The rank of the worker at each place in the grid."""
        return dict(zip(itertools.product(*map(range, self.splits)), self.ranks, strict=True))

    def ranks_along(self, dims: Sequence[int | None], splits: Sequence[int]) -> tuple[int, ...]:
        """The ranks of a grid of other dimensions, row-major; at index 0 of the dimensions that it does not have.

        Args:
            dims: for each dimension of the grid the own dimension whose workers it has, or None.
            splits: the shape of the grid.
        """
        ranks = []
        for place in itertools.product(*map(range, splits)):
            index = [0] * len(self.splits)
            for d, at in zip(dims, place, strict=True):
                if d is not None:
                    index[d] = at
            ranks.append(self.rank_at[tuple(index)])
        return tuple(ranks)

    def grid(self, like: Grid) -> Grid:
        """The workers, as a grid of the same communicator."""
        return like.related(self.ranks, self.splits)

    def block(self, rank: int) -> Box | None:
        """The block of a rank; None for a rank that is no worker."""
        return self.box_among(self.intervals, rank) if rank in self.place_of else None

    def box_among(self, intervals: IntervalsByDim, rank: int) -> Box:
        """The box of a worker, where boxes may overlap. Along a dimension with one interval all workers have it."""
        rest, box = self.place_of[rank], list[Interval]()
        for along, workers in zip(reversed(intervals), reversed(self.splits), strict=True):
            rest, place = divmod(rest, workers)
            box.append(along[place if len(along) > 1 else 0])
        return tuple(reversed(box))

    @functools.cached_property
    def place_of(self) -> dict[int, int]:
        """The number of each rank among the workers."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of a rank's block; without elements for a rank that is no worker."""
        block = self.block(rank)
        return (0,) * len(self.block_sizes) if block is None else box_shape(block)

    def largest(self) -> int:
        """The number of elements of the largest block."""
        return math.prod(max(sizes) for sizes in self.block_sizes)

    def __str__(self) -> str:
        return f"{list(self.splits)} on ranks {list(self.ranks)}"


@dataclass(frozen=True)
class Replicated:
    """A tensor that each worker has whole: a parameter, a constant, or a function of these alone.

    The gradient is the sum of the workers' gradients.
    """

    def __str__(self) -> str:
        return "on each worker"


Placement = Blocks | Replicated
REPLICATED = Replicated()


def input_placement(ranks: Sequence[int], splits: Sequence[int], shape: Sequence[int]) -> Placement:
    """The placement of an input: in balanced blocks, or replicated if it has fewer dimensions."""
    return REPLICATED if len(shape) < len(splits) else Blocks.balanced(ranks, splits, shape)


@functools.cache
def balanced_sizes(n: int, parts: int, unit: int = 1) -> tuple[int, ...]:
    """The sizes of balanced blocks of n elements, each a multiple of a unit, which divides n."""
    return tuple(unit * size for size in box_shape(cut(n // unit, parts)))


def ways_to_split(workers: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All factorizations of the largest usable number of workers, with at most `most` of them along each dimension."""
    for count in range(workers, 0, -1):
        factorizations = [*_factorizations(count, tuple(min(n, count) for n in most))]
        if factorizations:
            yield from factorizations
            return


@functools.cache
def _factorizations(count: int, most: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    if not most:
        return ((),) if count == 1 else ()
    return tuple(
        (first, *rest)
        for first in range(1, max(1, most[0]) + 1)
        if count % first == 0
        for rest in _factorizations(count // first, most[1:])
    )
