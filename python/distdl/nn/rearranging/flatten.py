"""Flattening and unflattening; any dimension may be split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated

import torch

from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import (
    FurtherPartition,
    Integer,
    PartitionsFirst,
    named,
    option,
    with_partitions_first,
)
from distdl.nn.base.options import integers
from distdl.nn.rearranging.order import box_in, choose_result, interval_around, leading_dim, rows_around
from distdl.nn.windows.blocks import naming_layer
from distdl.nn.windows.reader import BoxReader
from distdl.partitions.boxes import Interval, block_intervals, cut, same_blocks
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition

__all__ = ["DistributedFlatten", "DistributedUnflatten"]


def _unflattened_size(layer: str, value: object, name: str) -> tuple[int, ...]:
    size = tuple(integers(layer, value, name))
    if not size or sum(n < 0 for n in size) > 1 or min(size) < -1:
        raise RuntimeError(f"{layer}: {name}={size!r}; there has to be at least one size, and one of them may be -1")
    return size


class _Reshaping(Layer):
    """The common part of flattening and unflattening: the result's partition, and an exchange if necessary.

    Each worker of P_y reads the smallest box of the input around its elements, among the boxes of P_y's places.
    """

    P_y: Partition | None

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The default shape of the result's partition, for a P_x of this shape."""
        raise NotImplementedError

    def prepare(self) -> None:
        self._read: BoxReader | None = None

    def make_reader(self, shape: Sequence[int], sizes: Sequence[Sequence[int]], reads: list[list[Interval]]) -> None:
        """Let each worker of P_y, as a grid of this shape, read these intervals of the input, unless it has them."""
        P_y, blocks = self._result.reshaped(shape), [block_intervals(along) for along in sizes]
        stays = self.grid.ranks == P_y.ranks and self.grid.shape == P_y.shape and reads == blocks
        extents = [sum(along) for along in sizes]
        self._read = None if stays else BoxReader(type(self).__name__, self.grid, P_y, extents, reads)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        read = input if self._read is None else self._read(input)
        if self._result.active:
            return self.reshaped(read)
        return input.clone() if self._read is None else read

    def reshaped(self, read: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@with_partitions_first
class DistributedFlatten(PartitionsFirst, _Reshaping):
    """Joins several dimensions: ``torch.nn.Flatten`` in blocks.

    If only the first flattened dimension is split, into balanced blocks, each worker flattens its block. Otherwise it
    receives the rows with its elements.

    Args:
        P_x: the partition of the input; any dimension may be split.
        start_dim, end_dim: as in ``torch.nn.Flatten``.
        P_y: the partition of the result, with as many dimensions. By default, the workers of the flattened dimensions
            in a row: [2, 4] for a P_x of shape [2, 2, 2], flattened from dimension 1 on. It may directly follow P_x.

    Shape:
        Any shape in any blocks. The flattened dimension is in balanced blocks along its dimension of P_y. Other
        dimensions are in the input's blocks if P_y has as many workers there as P_x, otherwise in balanced blocks. Zero
        volume on all ranks outside of P_y.

    Attributes:
        P_y: the partition of the result.

    Raises:
        ValueError: on all ranks, if P_y has another number of dimensions than the result.
        TypeError, IndexError, RuntimeError: on all ranks, for dimensions that torch.nn refuses.
    """

    start_dim: Integer = 1
    end_dim: Integer = -1
    _: KW_ONLY
    P_y: FurtherPartition = option(default=None)

    def check_options(self) -> None:
        if self.grid.known:
            with naming_layer("DistributedFlatten"):
                torch.empty([1] * self.grid.dim, device="meta").flatten(self.start_dim, self.end_dim)
            self._first, self._last = self.start_dim % self.grid.dim, self.end_dim % self.grid.dim
        self.P_y, self._result = choose_result(self)

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        first, end = self._first, self._last + 1
        return (*shape[:first], math.prod(shape[first:end]), *shape[end:])

    def set_up(self) -> None:
        sizes, first, end = self.blocks(self.grid), self._first, self._last + 1
        workers = list(self._result.shape)
        extents = [sum(along) for along in sizes[first:end]]
        before = [same_blocks(along, p) for along, p in zip(sizes[:first], workers[:first], strict=True)]
        after = [same_blocks(along, p) for along, p in zip(sizes[end:], workers[first + 1 :], strict=True)]
        if end == first + 1:
            blocks = inner = same_blocks(sizes[first], workers[first])
            row, shape, along = 1, workers, [inner]
        else:
            # The workers split the first dimension with several rows; later dimensions are read whole.
            d = leading_dim(extents)
            row = math.prod(extents[d + 1 :])
            blocks = cut(math.prod(extents), workers[first])
            inner = [rows_around(block, row) for block in blocks]
            along = [inner if e == d else [(0, n)] for e, n in enumerate(extents)]
            shape = [*workers[:first], *map(len, along), *workers[first + 1 :]]
        self.make_reader(shape, sizes, [*before, *along, *after])
        if self._result.active:
            place = self._result.place[first]
            start, stop = blocks[place]
            self._part = (start - inner[place][0] * row if start < stop else 0, stop - start)

    def reshaped(self, read: torch.Tensor) -> torch.Tensor:
        return read.flatten(self._first, self._last).narrow(self._first, *self._part)


@with_partitions_first
class DistributedUnflatten(PartitionsFirst, _Reshaping):
    """Splits a dimension into several: ``torch.nn.Unflatten`` in blocks.

    Args:
        P_x: the partition of the input; any dimension may be split.
        dim, unflattened_size: as in ``torch.nn.Unflatten``.
        P_y: the partition of the result, with as many dimensions. By default, the workers of the dimension split the
            first new dimension with more than one element. It may directly follow P_x.

    Shape:
        Any shape in any blocks. The new dimensions are in balanced blocks along their dimensions of P_y. Other
        dimensions are in the input's blocks if P_y has as many workers there as P_x, otherwise in balanced blocks. Zero
        volume on all ranks outside of P_y.

    Attributes:
        P_y: the partition of the result.

    Raises:
        ValueError: on all ranks, if P_y has another number of dimensions than the result.
        TypeError, IndexError, RuntimeError: on all ranks, for a dimension or sizes that torch.nn refuses.

    If P_y splits later new dimensions, a worker receives whole rows of the first new dimension. Collective:
    constructing over the partitions' parent communicator, calling over the partitions.
    """

    dim: Integer
    unflattened_size: Annotated[tuple[int, ...], named(_unflattened_size)]
    _: KW_ONLY
    P_y: FurtherPartition = option(default=None)

    def check_options(self) -> None:
        if self.grid.known:
            with naming_layer("DistributedUnflatten"):
                torch.empty([1] * self.grid.dim, device="meta").unflatten(self.dim, (1,))
            self._at = self.dim % self.grid.dim
        self.P_y, self._result = choose_result(self)

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        d = next((e for e, n in enumerate(self.unflattened_size) if n != 1), 0)
        new = [shape[self._at] if e == d else 1 for e in range(len(self.unflattened_size))]
        return (*shape[: self._at], *new, *shape[self._at + 1 :])

    def set_up(self) -> None:
        sizes, at, count = self.blocks(self.grid), self._at, len(self.unflattened_size)
        with naming_layer("DistributedUnflatten"):
            whole = torch.empty([sum(along) for along in sizes], device="meta").unflatten(at, self.unflattened_size)
        self._extents, workers = list(whole.shape[at : at + count]), list(self._result.shape)
        new = Grid.unknown(workers[at : at + count])
        along = [cut(n, p) for n, p in zip(self._extents, new.shape, strict=True)]
        places = [new.index(i) for i in range(math.prod(new.shape))]
        boxes = [[blocks[i] for blocks, i in zip(along, place, strict=True)] for place in places]
        reads = [same_blocks(along, p) for along, p in zip(sizes[:at], workers[:at], strict=True)]
        reads.append([interval_around(box, self._extents) for box in boxes])
        reads += [same_blocks(along, p) for along, p in zip(sizes[at + 1 :], workers[at + count :], strict=True)]
        self.make_reader((*workers[:at], len(places), *workers[at + count :]), sizes, reads)
        if self._result.active:
            self._box = boxes[new.worker(self._result.place[at : at + count])]

    def reshaped(self, read: torch.Tensor) -> torch.Tensor:
        return box_in(read, self._at, self._box, self._extents)
