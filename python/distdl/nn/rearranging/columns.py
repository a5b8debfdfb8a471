"""Unfold and fold: windows as columns, and sums of columns at the places of their windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import ClassVar

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import (
    FurtherPartition,
    NaturalSizes,
    PartitionsFirst,
    PositiveSizes,
    option,
    with_partitions_first,
)
from distdl.nn.rearranging.order import box_in, choose_result, interval_around, leading_dim, rows_around
from distdl.nn.windows.blocks import naming_layer
from distdl.nn.windows.reader import BoxReader
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import Interval, cut, same_blocks
from distdl.partitions.partition import Partition

__all__ = ["DistributedFold", "DistributedUnfold"]


class _Columns(Layer):
    """The common part of fold and unfold: windows in two dimensions, and the partition of the result."""

    P_y: Partition | None
    kernel_size: PositiveSizes
    dilation: PositiveSizes
    padding: NaturalSizes
    stride: PositiveSizes
    dims: ClassVar[int] = 2  # of windows
    input_dims: ClassVar[int]  # without the batch

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The default shape of the result's partition, for a P_x of this shape."""
        raise NotImplementedError

    def check_options(self) -> None:
        dims = self.input_dims
        self.check_shape(self.grid.dim - dims in (0, 1), f"it needs {dims} dimensions, or {dims + 1} with a batch")
        self._batch = int(self.grid.known and self.grid.dim > dims)
        self.P_y, self._result = choose_result(self)

    def prepare(self) -> None:
        self._read: BoxReader | None = None
        self._windows = [
            _core.Window(kernel, step, (pad, pad), spread)
            for kernel, step, pad, spread in zip(
                self.kernel_size, self.stride, self.padding, self.dilation, strict=True
            )
        ]
        self._taps = math.prod(self.kernel_size)

    def batch_read(self, sizes: Sequence[Sequence[int]]) -> list[list[Interval]]:
        """The intervals read along the batch's dimension of P_y, by place; none without a batch."""
        return [same_blocks(sizes[0], self._result.shape[0])] if self._batch else []

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if self._read is None:
            return input.clone()
        read = self._read(input)
        return self.from_box(read) if self._result.active else read

    def from_box(self, read: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@with_partitions_first
class DistributedUnfold(PartitionsFirst, _Columns):
    """Copies each window to a column: ``torch.nn.Unfold`` in blocks.

    Each worker receives the input rows of its windows once, and copies them to columns.

    Args:
        P_x: the partition of the input, ``[channels, rows, columns]`` or ``[batch, channels, rows, columns]``; any
            dimension may be split.
        kernel_size, dilation, padding, stride: as in ``torch.nn.Unfold``.
        P_y: the partition of the result, ``[channels, windows]`` after the batch. Default: the workers of both spatial
            dimensions in a row. It may directly follow P_x.

    Shape:
        ``(N, C, H, W)`` or ``(C, H, W)``, as P_x, in any blocks. The result ``(N, C * prod(kernel_size), L)`` is in
        balanced blocks of its last two dimensions, and in the input's blocks of the batch. Zero volume on all ranks
        outside of P_y.

    Attributes:
        P_y: the partition of the result.

    Raises:
        ValueError: on all ranks, if the partitions are not as described.
        TypeError, RuntimeError, NotImplementedError: on all ranks, for options, an input size or a dtype that torch.nn
            refuses.
    """

    kernel_size: PositiveSizes
    dilation: PositiveSizes = option(default=1)
    padding: NaturalSizes = option(default=0)
    stride: PositiveSizes = option(default=1)
    _: KW_ONLY
    P_y: FurtherPartition = option(default=None)
    input_dims = 3

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-2], shape[-2] * shape[-1])

    def set_up(self) -> None:
        name, sizes = "DistributedUnfold", self.blocks(self.grid)
        extents = [sum(along) for along in sizes]
        with naming_layer(name):
            whole = F.unfold(
                torch.empty(extents, device="meta"), self.kernel_size, self.dilation, self.padding, self.stride
            )
            F.unfold(torch.zeros(1, 1, 1, dtype=self.structure(self.grid)[0][1], device="cpu"), 1)
        counts = [window.outputs(n) for window, n in zip(self._windows, extents[-2:], strict=True)]
        workers = self._result.shape
        channels, columns = (cut(n, p) for n, p in zip(whole.shape[-2:], workers[-2:], strict=True))
        # The workers split the first dimension with several windows; the other dimension is read whole.
        d = leading_dim(counts)
        row = math.prod(counts[d + 1 :])
        windows = [[(0, n)] for n in counts]
        windows[d] = [rows_around(block, row) for block in columns]
        space = [
            [window.reads(n, interval) for interval in along]
            for window, n, along in zip(self._windows, extents[-2:], windows, strict=True)
        ]
        groups = [rows_around(block, self._taps) for block in channels]
        P_y = self._result.reshaped((*workers[:-1], *map(len, windows)))
        self._read = BoxReader(name, self.grid, P_y, extents, [*self.batch_read(sizes), groups, *space])
        if self._result.active:
            i, j = self._result.place[-2:]
            self._own = [
                _within_box(channels[i], groups[i][0] * self._taps),
                _within_box(columns[j], windows[d][j][0] * row),
            ]

    def from_box(self, read: torch.Tensor) -> torch.Tensor:
        (first, rows), (at, columns) = self._own
        if read.numel() == 0 or rows == 0 or columns == 0:
            return read.flatten()[:0].view([*read.shape[: self._batch], rows, columns])
        columns_read = F.unfold(read, self.kernel_size, self.dilation, 0, self.stride)
        return columns_read.narrow(-2, first, rows).narrow(-1, at, columns)


@with_partitions_first
class DistributedFold(PartitionsFirst, _Columns):
    """Sums columns at the places of their windows: ``torch.nn.Fold`` in blocks.

    Each worker receives and sums the columns of the windows that meet its block of the result.

    Args:
        P_x: the partition of the input, ``[channels, windows]`` or ``[batch, channels, windows]``; any dimension may be
            split.
        output_size, kernel_size, dilation, padding, stride: as in ``torch.nn.Fold``.
        P_y: the partition of the result, ``[channels, rows, columns]`` after the batch. By default, the workers of the
            windows split the rows. It may directly follow P_x.

    Shape:
        ``(N, C * prod(kernel_size), L)`` or without N, as P_x, in any blocks. The result ``(N, C, *output_size)`` is in
        balanced blocks of its last three dimensions, and in the input's blocks of the batch. Zero volume on all ranks
        outside of P_y.

    Attributes:
        P_y: the partition of the result.

    Raises:
        ValueError: on all ranks, if the partitions are not as described.
        TypeError, RuntimeError, NotImplementedError: on all ranks, for options, an input size or a dtype that torch.nn
            refuses.
    """

    output_size: PositiveSizes
    kernel_size: PositiveSizes
    dilation: PositiveSizes = option(default=1)
    padding: NaturalSizes = option(default=0)
    stride: PositiveSizes = option(default=1)
    _: KW_ONLY
    P_y: FurtherPartition = option(default=None)
    input_dims = 2

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape, 1)

    def set_up(self) -> None:
        name, sizes = "DistributedFold", self.blocks(self.grid)
        extents = [sum(along) for along in sizes]
        with naming_layer(name):
            whole = F.fold(
                torch.empty(extents, device="meta"),
                self.output_size,
                self.kernel_size,
                self.dilation,
                self.padding,
                self.stride,
            )
            F.fold(torch.zeros(1, 1, 1, dtype=self.structure(self.grid)[0][1], device="cpu"), 1, 1)
        workers = self._result.shape
        channels, *space = (cut(n, p) for n, p in zip(whole.shape[-3:], workers[-3:], strict=True))
        self._counts = [window.outputs(n) for window, n in zip(self._windows, self.output_size, strict=True)]
        meeting = [[self._windows_at(d, block) for block in along] for d, along in enumerate(space)]
        boxes = [[rows, columns] for rows in meeting[0] for columns in meeting[1]]
        groups = [(start * self._taps, stop * self._taps) for start, stop in channels]
        columns = [interval_around(box, self._counts) for box in boxes]
        P_y = self._result.reshaped((*workers[:-2], len(boxes)))
        self._read = BoxReader(name, self.grid, P_y, extents, [*self.batch_read(sizes), groups, columns])
        if self._result.active:
            place = self._result.place
            self._channels = channels[place[-3]][1] - channels[place[-3]][0]
            self._space = [along[i] for along, i in zip(space, place[-2:], strict=True)]
            self._box = [along[i] for along, i in zip(meeting, place[-2:], strict=True)]

    def _windows_at(self, d: int, block: Interval) -> Interval:
        (start, stop), step = block, self.stride[d]
        first = -(-(start + self.padding[d] - self._windows[d].reach() + 1) // step)
        last = (stop - 1 + self.padding[d]) // step
        first, last = max(first, 0), min(last, self._counts[d] - 1)
        return (first, last + 1) if start < stop and first <= last else (0, 0)

    def from_box(self, read: torch.Tensor) -> torch.Tensor:
        shape = [*read.shape[: self._batch], self._channels, *(stop - start for start, stop in self._space)]
        if 0 in shape or any(start == stop for start, stop in self._box):
            return zero_of(read).expand(shape).contiguous()
        columns = box_in(read, read.dim() - 1, self._box, self._counts).flatten(-2)
        reached, pads = [], []
        for d, ((first, last), (start, stop)) in enumerate(zip(self._box, self._space, strict=True)):
            reached.append((last - first - 1) * self.stride[d] + self._windows[d].reach())
            begin = first * self.stride[d] - self.padding[d]  # of the first window, in the result
            pads.append((begin - start, stop - begin - reached[-1]))
        summed = F.fold(columns, reached, self.kernel_size, self.dilation, 0, self.stride)
        return F.pad(summed, [*pads[1], *pads[0]])


def _within_box(block: Interval, first: int) -> tuple[int, int]:
    """(start, size) of a block in a box that begins at `first`."""
    start, stop = block
    return (start - first, stop - start) if start < stop else (0, 0)
