"""Flattening and unflattening dimensions of which any may be split."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from distdl.collective.construction import PartitionLike, partitions_behind_first
from distdl.collective.grid import Grid
from distdl.nn.layer import Layer
from distdl.nn.options import integer
from distdl.nn.rearranging.order import choose_result, interval_around, kept, leading_dim, rows_around, unflattened
from distdl.nn.windows.blocks import Interval, as_of, intervals_of
from distdl.nn.windows.reader import Reader
from distdl.parameters.layout import cut
from distdl.partition import Partition

__all__ = ["DistributedFlatten", "DistributedUnflatten"]


class _Reshaping(Layer):
    """The common part of flattening and unflattening: the result's partition, and one exchange where it is needed.

    Each worker of P_y reads the smallest box of the input, of those that P_y's places can have, around its elements.
    """

    P_y: Partition | None

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the result's partition, where it is not given, for one of this shape."""
        raise NotImplementedError

    def prepare(self) -> None:
        self._read: Reader | None = None

    def make_reader(self, shape: Sequence[int], sizes: Sequence[Sequence[int]], reads: list[list[Interval]]) -> None:
        """Have each worker of P_y, seen as a grid of this shape, read these intervals of the input, if it does not have
        them."""
        P_y, own = self._result.reshaped(shape), [intervals_of(along) for along in sizes]
        stays = self.grid.ranks == P_y.ranks and self.grid.shape == P_y.shape and reads == own
        extents = [sum(along) for along in sizes]
        self._read = None if stays else Reader(type(self).__name__, self.grid, P_y, extents, reads)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        """This worker's block of the result."""
        read = input if self._read is None else self._read(input)
        if self._result.active:
            return self.reshaped(read)
        return input.clone() if self._read is None else read

    def reshaped(self, read: torch.Tensor) -> torch.Tensor:
        """This worker's block of the result, from what it read."""
        raise NotImplementedError


class DistributedFlatten(_Reshaping):
    """Makes one dimension of several: ``torch.nn.Flatten`` in blocks.

    Where only the first of the flattened dimensions is split, and its blocks are balanced, blocks are flattened where
    they are. Otherwise each worker receives the rows of this dimension that its elements are in.

    Args:
        P_x: the partition of the input; any dimension may be split.
        start_dim, end_dim: as in ``torch.nn.Flatten``.
        P_y: the partition of the result, with as many dimensions. Without it the workers of the flattened dimensions
            stand in one row: a P_x of shape [2, 2, 2], flattened from dimension 1 on, becomes [2, 4]. It may stand
            directly behind P_x.

    Shape:
        Any shape in any blocks. The flattened dimension is in balanced blocks along its dimension of P_y. The others
        are in the input's blocks where P_y has as many workers there as P_x, and in balanced blocks otherwise. Zero
        volume on all ranks outside of P_y.

    Attributes:
        P_y: the partition of the result.

    Raises:
        ValueError: on all ranks, if P_y has another number of dimensions than the result.
        TypeError, IndexError, RuntimeError: on all ranks, where torch.nn raises them for the dimensions.

    Collective: constructing over the partitions' parent communicator, calling over the partitions.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Flatten.html.
    """

    start_dim: int
    end_dim: int

    @partitions_behind_first("P_y")
    def __init__(
        self, P_x: PartitionLike, start_dim: int = 1, end_dim: int = -1, *, P_y: PartitionLike | None = None
    ) -> None:
        super().__init__(locals())

    def check_options(self) -> None:
        self.start_dim = integer("DistributedFlatten", self.start_dim, "start_dim")
        self.end_dim = integer("DistributedFlatten", self.end_dim, "end_dim")
        if self.grid.known:
            with as_of("DistributedFlatten"):
                torch.empty([1] * self.grid.dim, device="meta").flatten(self.start_dim, self.end_dim)
            self._first, self._last = self.start_dim % self.grid.dim, self.end_dim % self.grid.dim
        self.P_y, self._result = choose_result(self)

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        first, behind = self._first, self._last + 1
        return (*shape[:first], math.prod(shape[first:behind]), *shape[behind:])

    def set_up(self) -> None:
        sizes, first, behind = self.blocks(self.grid), self._first, self._last + 1
        workers = list(self._result.shape)
        extents = [sum(along) for along in sizes[first:behind]]
        before = [kept(along, p) for along, p in zip(sizes[:first], workers[:first], strict=True)]
        after = [kept(along, p) for along, p in zip(sizes[behind:], workers[first + 1 :], strict=True)]
        if behind == first + 1:
            own = inner = kept(sizes[first], workers[first])
            row, shape, along = 1, workers, [inner]
        else:
            # The workers stand along the first dimension that has rows to share out; those behind it are read whole.
            d = leading_dim(extents)
            row = math.prod(extents[d + 1 :])
            own = cut(math.prod(extents), workers[first])
            inner = [rows_around(block, row) for block in own]
            along = [inner if e == d else [(0, n)] for e, n in enumerate(extents)]
            shape = [*workers[:first], *map(len, along), *workers[first + 1 :]]
        self.make_reader(shape, sizes, [*before, *along, *after])
        if self._result.active:
            place = self._result.place[first]
            start, stop = own[place]
            self._part = (start - inner[place][0] * row if start < stop else 0, stop - start)

    def reshaped(self, read: torch.Tensor) -> torch.Tensor:
        return read.flatten(self._first, self._last).narrow(self._first, *self._part)


class DistributedUnflatten(_Reshaping):
    """Makes several dimensions of one: ``torch.nn.Unflatten`` in blocks.

    Args:
        P_x: the partition of the input; any dimension may be split.
        dim, unflattened_size: as in ``torch.nn.Unflatten``.
        P_y: the partition of the result, with as many dimensions. Without it the workers of the dimension stand along
            the first of its new dimensions that has more than one element. It may stand directly behind P_x.

    Shape:
        Any shape in any blocks. The new dimensions are in balanced blocks along those of P_y. The others are in the
        input's blocks where P_y has as many workers there as P_x, and in balanced blocks otherwise. Zero volume on all
        ranks outside of P_y.

    Attributes:
        P_y: the partition of the result.

    Raises:
        ValueError: on all ranks, if P_y has another number of dimensions than the result.
        TypeError, IndexError, RuntimeError: on all ranks, where torch.nn raises them for the dimension or the sizes.

    Where P_y splits later ones of the new dimensions, a worker receives whole rows of the first one. Collective:
    constructing over the partitions' parent communicator, calling over the partitions.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Unflatten.html.
    """

    dim: int
    unflattened_size: tuple[int, ...]

    @partitions_behind_first("P_y")
    def __init__(
        self, P_x: PartitionLike, dim: int, unflattened_size: Sequence[int], *, P_y: PartitionLike | None = None
    ) -> None:
        super().__init__(locals())

    def check_options(self) -> None:
        given = self.unflattened_size
        self.dim = integer("DistributedUnflatten", self.dim, "dim")
        if not isinstance(given, tuple | list):
            raise TypeError(f"DistributedUnflatten: unflattened_size={given!r}; it has to be a tuple of ints")
        self.unflattened_size = tuple(integer("DistributedUnflatten", n, "unflattened_size", given) for n in given)
        if self.grid.known:
            with as_of("DistributedUnflatten"):
                torch.empty([1] * self.grid.dim, device="meta").unflatten(self.dim, (1,))
            self._at = self.dim % self.grid.dim
        if not given or sum(n < 0 for n in given) > 1 or min(given) < -1:
            raise RuntimeError(
                f"DistributedUnflatten: unflattened_size={given!r}; there has to be at least one size, and one of them "
                "may be -1"
            )
        self.P_y, self._result = choose_result(self)

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        d = next((e for e, n in enumerate(self.unflattened_size) if n != 1), 0)
        new = [shape[self._at] if e == d else 1 for e in range(len(self.unflattened_size))]
        return (*shape[: self._at], *new, *shape[self._at + 1 :])

    def set_up(self) -> None:
        sizes, at, count = self.blocks(self.grid), self._at, len(self.unflattened_size)
        with as_of("DistributedUnflatten"):
            whole = torch.empty([sum(along) for along in sizes], device="meta").unflatten(at, self.unflattened_size)
        self._extents, workers = list(whole.shape[at : at + count]), list(self._result.shape)
        new = Grid.unknown(workers[at : at + count])
        along = [cut(n, p) for n, p in zip(self._extents, new.shape, strict=True)]
        places = [new.index(i) for i in range(math.prod(new.shape))]
        boxes = [[blocks[i] for blocks, i in zip(along, place, strict=True)] for place in places]
        reads = [kept(one, p) for one, p in zip(sizes[:at], workers[:at], strict=True)]
        reads.append([interval_around(box, self._extents) for box in boxes])
        reads += [kept(one, p) for one, p in zip(sizes[at + 1 :], workers[at + count :], strict=True)]
        self.make_reader((*workers[:at], len(places), *workers[at + count :]), sizes, reads)
        if self._result.active:
            self._box = boxes[new.worker(self._result.place[at : at + count])]

    def reshaped(self, read: torch.Tensor) -> torch.Tensor:
        return unflattened(read, self._at, self._box, self._extents)
