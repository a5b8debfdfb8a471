"""Layers that permute channels, or exchange them with space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from distdl import _core
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Positive, with_options
from distdl.nn.rearranging.order import rows_around
from distdl.nn.windows.blocks import Resizing, blocks_of_outputs, naming_layer
from distdl.nn.windows.layer import ResizingLayer
from distdl.nn.windows.reader import BoxReader
from distdl.partitions.boxes import block_intervals

__all__ = ["DistributedChannelShuffle", "DistributedPixelShuffle", "DistributedPixelUnshuffle"]


class _ChannelsAndSpace(ResizingLayer):
    """The common part of the pixel shuffles: a dimension shrinks by a factor, others grow by it.

    A worker receives the smallest box of the input around the elements of its block, rearranges it, and drops the
    elements of others.
    """

    grows: ClassVar[tuple[bool, bool, bool]]  # whether channels, rows and columns grow

    def factors(self) -> tuple[int, int, int]:
        raise NotImplementedError

    def rearranged(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def check_options(self) -> None:
        self.check_shape(self.grid.dim >= 3, "it needs channels and two spatial dimensions")

    def prepare(self) -> None:
        self._cuts: list[tuple[int, int, int]] = []  # (dimension, start, size) of this worker's block in its box
        self._read: BoxReader | None = None

    def set_up(self) -> None:
        name, sizes = type(self).__name__, self.blocks(self.grid)
        extents, input_blocks = [sum(along) for along in sizes], [block_intervals(along) for along in sizes]
        with naming_layer(name):
            self.rearranged(torch.empty(extents, device="meta"))
        self._cuts, reads = [], input_blocks[:-3]
        for d, (factor, grows) in enumerate(zip(self.factors(), self.grows, strict=True), start=-3):
            rule: Resizing = _core.TransposedWindow(factor, factor, 0, 1, 0) if grows else _core.Window(factor, factor)
            blocks = blocks_of_outputs(rule, sizes[d], self.output_blocks)
            reads.append([rule.reads(extents[d], block) for block in blocks])
            if grows and self.grid.active:
                place = self.grid.place[d]
                start, stop = blocks[place]
                self._cuts.append((d, start - reads[-1][place][0] * factor if start < stop else 0, stop - start))
        self._read = None if reads == input_blocks else BoxReader(name, self.grid, self.grid, extents, reads)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if self._read is not None:
            input = self._read(input)
        if not self.grid.active:
            return input.clone()
        result = self.rearranged(input) if input.numel() else self._rearranged_empty(input)
        for cut in self._cuts:
            result = result.narrow(*cut)
        return result

    def _rearranged_empty(self, input: torch.Tensor) -> torch.Tensor:
        """The result for an empty tensor, for which torch returns another shape."""
        changes = zip(input.shape[-3:], self.factors(), self.grows, strict=True)
        return input.view([*input.shape[:-3], *(n * by if grows else n // by for n, by, grows in changes)])


@with_options
class DistributedPixelShuffle(_ChannelsAndSpace):
    """Turns channels into pixels: ``torch.nn.PixelShuffle`` in blocks.

    Args:
        P_x: the partition of input and output, ``[*, channels, rows, columns]``; any dimension may be split.
        upscale_factor: as in ``torch.nn.PixelShuffle``.
        output_blocks: 'balanced' in channels and space, or 'aligned': pixels stay on the worker of their source, and
            channels are cut where the input is cut, as far as the factor allows.

    Shape:
        ``(*, C * r**2, H, W)`` in any blocks. The result is ``(*, C, H * r, W * r)``: balanced or aligned in its last
        three dimensions, in the input's blocks in all others.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is invalid.
        TypeError, RuntimeError: on all ranks, for a factor or an input size that torch.nn refuses.

    Nothing travels if the blocks of channels are multiples of ``r**2`` and space is balanced or aligned. Collective:
    constructing over P_x's parent communicator, calling over P_x.
    """

    upscale_factor: Positive
    grows = (False, True, True)

    def factors(self) -> tuple[int, int, int]:
        return self.upscale_factor**2, self.upscale_factor, self.upscale_factor

    def rearranged(self, x: torch.Tensor) -> torch.Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)


@with_options
class DistributedPixelUnshuffle(_ChannelsAndSpace):
    """Turns pixels into channels: ``torch.nn.PixelUnshuffle`` in blocks.

    Args:
        P_x: the partition of input and output, ``[*, channels, rows, columns]``; any dimension may be split.
        downscale_factor: as in ``torch.nn.PixelUnshuffle``.
        output_blocks: 'balanced' in channels and space, or 'aligned': channels stay on the worker of their source, and
            space is cut where the input is cut, as far as the factor allows.

    Shape:
        ``(*, C, H * r, W * r)`` in any blocks. The result is ``(*, C * r**2, H, W)``: balanced or aligned in its last
        three dimensions, in the input's blocks in all others.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is invalid.
        TypeError, RuntimeError: on all ranks, for a factor or an input size that torch.nn refuses.
    """

    downscale_factor: Positive
    grows = (True, False, False)

    def factors(self) -> tuple[int, int, int]:
        return self.downscale_factor**2, self.downscale_factor, self.downscale_factor

    def rearranged(self, x: torch.Tensor) -> torch.Tensor:
        return F.pixel_unshuffle(x, self.downscale_factor)


# With more groups than this, a worker reads all channels in one message, not a part of each group.
_GROUPS = 8


@with_options
class DistributedChannelShuffle(Layer):
    """Takes channels from groups in turn: ``torch.nn.ChannelShuffle`` in blocks.

    Args:
        P_x: the partition of input and output, ``[batch, channels, *space]``; any dimension may be split.
        groups: as in ``torch.nn.ChannelShuffle``.

    Shape:
        ``(N, C, *space)`` in any blocks; the result is in the same blocks.

    Raises:
        ValueError: on all ranks, if P_x has fewer than three dimensions.
        TypeError, RuntimeError: on all ranks, for groups or an input size that torch.nn refuses.

    Nothing travels if channels are not split. Collective: constructing over P_x's parent communicator, calling over
    P_x.
    """

    groups: Positive

    def check_options(self) -> None:
        self.check_shape(self.grid.dim >= 3, "it needs batch, channels and at least one spatial dimension")

    def prepare(self) -> None:
        self._reads: list[BoxReader] = []
        # The order of the channels read. torch.export would take a tensor here for a change of the model.
        self._order = np.empty(0, dtype=np.int64)

    def set_up(self) -> None:
        name, sizes = type(self).__name__, self.blocks(self.grid)
        extents, blocks = [sum(along) for along in sizes], [block_intervals(along) for along in sizes]
        with naming_layer(name):
            F.channel_shuffle(torch.empty(extents, device="meta"), self.groups)
        each = extents[1] // self.groups
        # Channel o of the result is channel o // groups of group o % groups.
        needs = [rows_around(block, self.groups) for block in blocks[1]]
        if len(blocks[1]) == 1 or self.groups > _GROUPS:
            parts = [[(0, extents[1])] * len(needs)]
        else:
            parts = [[(g * each + start, g * each + stop) for start, stop in needs] for g in range(self.groups)]
        reading = len(blocks[1]) > 1
        wanted = [[blocks[0], part, *blocks[2:]] for part in parts if reading]
        self._reads = [BoxReader(name, self.grid, self.grid, extents, reads) for reads in wanted]
        if self.grid.active:
            self._order = self._order_of(parts, range(*blocks[1][self.grid.place[1]]), each)

    def _order_of(self, parts: Sequence[Sequence[tuple[int, int]]], channels: range, each: int) -> NDArray[np.int64]:
        read = [channel for part in parts for channel in range(*part[self.grid.place[1]])]
        at = {channel: i for i, channel in enumerate(read)}
        return np.array([at[o % self.groups * each + o // self.groups] for o in channels], dtype=np.int64)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return input.clone()
        read = [reader(input) for reader in self._reads]
        return (torch.cat(read, 1) if read else input).index_select(1, torch.from_numpy(self._order).to(input.device))
