"""Padding and cropping over blocks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Annotated, TypeAlias

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.modules.graph import empty_result
from distdl.nn.base.option_types import Converted, choice, named, with_options
from distdl.nn.base.precision import as_under_autocast
from distdl.nn.windows.blocks import blocks_of_outputs, naming_layer
from distdl.nn.windows.layer import ResizingLayer
from distdl.nn.windows.memory import check_memory
from distdl.nn.windows.reader import BoxReader
from distdl.partitions.boxes import Interval, block_intervals

__all__ = ["DistributedPad"]

_MODES = ("constant", "reflect", "replicate", "circular")
_MODE_OF = {
    getattr(torch.nn, f"{kind}Pad{dims}d"): mode
    for kind, mode in (("Constant", "constant"), ("Zero", "constant"), ("Reflection", "reflect"),
                       ("Replication", "replicate"), ("Circular", "circular"))
    for dims in (1, 2, 3)
}  # fmt: skip
"""The padding layers of torch.nn, with their modes."""
_widths = named(lambda layer, value, name: tuple(map(index, value)))
PaddingWidths: TypeAlias = Annotated[Converted[tuple[int, ...], Sequence[int]], _widths]


@with_options
class DistributedPad(ResizingLayer):
    """Pads or crops a partitioned tensor: ``torch.nn.functional.pad`` in blocks.

    Args:
        P_x: the partition of input and output, with as many dimensions as the tensor; any may be split.
        pad: the widths (left, right) of the last dimension, then of the last but one, and so on. Negative widths crop.
        mode: 'constant', 'reflect', 'replicate' or 'circular'.
        value: the padding in mode 'constant'; 0 by default.
        output_blocks: 'balanced', or 'aligned': elements stay on their workers, only the outermost blocks grow or
            shrink.

    Shape:
        Any shape, in any blocks. The result is in balanced or aligned blocks in dimensions with widths in ``pad``, also
        widths of 0, and in the input's blocks in all others.

    Raises:
        ValueError: on all ranks, if partition and tensor differ in their number of dimensions, or output_blocks is
            unknown.
        RuntimeError, NotImplementedError: on all ranks, as in ``torch.nn.functional.pad``.
        RuntimeError: on all ranks, if mode 'circular' must wrap more elements than cropping leaves, which torch does
            not define.

    Collective: constructing over P_x's parent communicator, calling over P_x. With a ``value`` other than 0 the layer
    is affine, and its backward pass is the adjoint of the linear part.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pad.html.
    """

    pad: PaddingWidths
    mode: Annotated[str, choice(*_MODES, error=NotImplementedError)] = "constant"
    value: Annotated[float, named(lambda layer, value, name: float(value))] | None = None

    def prepare(self) -> None:
        self._crops: list[tuple[int, int, int]] = []  # (dimension, start, size) in this worker's block
        self._read: BoxReader | None = None

    def set_up(self) -> None:
        sizes = self.blocks(self.grid)
        _, dtype = self.structure(self.grid)[0]
        self._refuse_as_torch([sum(along) for along in sizes], dtype)
        self._crops = []
        extents, reads = [], []
        for d, along in enumerate(sizes):
            blocks = block_intervals(along)
            left, right = self._widths(d, len(sizes))
            if self.mode == "circular":  # wraps the elements that cropping leaves
                left, right, blocks = self._crop(d, left, right, blocks)
            extents.append(sum(stop - start for start, stop in blocks))
            if d >= len(sizes) - len(self.pad) // 2:
                window = _core.Window(1, padding=(left, right))
                blocks = blocks_of_outputs(window, [stop - start for start, stop in blocks], self.output_blocks)
            reads.append([(start - left, stop - left) for start, stop in blocks])
        largest = [max(stop - start for start, stop in along) for along in reads]
        check_memory("DistributedPad", self.grid, largest, dtype)
        value = self.value or 0.0 if max(self.pad, default=0) > 0 else 0.0  # an unused value may not fit the dtype
        self._read = BoxReader("DistributedPad", self.grid, self.grid, extents, reads, self.mode, value)

    def _widths(self, d: int, dims: int) -> tuple[int, int]:
        at = 2 * (dims - 1 - d)
        return (self.pad[at], self.pad[at + 1]) if at < len(self.pad) else (0, 0)

    def _refuse_as_torch(self, extents: list[int], dtype: torch.dtype) -> None:
        with naming_layer(type(self).__name__):
            F.pad(torch.empty(extents, device="meta"), self.pad, self.mode, self.value)
            # torch checks dtype and value only when it computes: here one element. Crops ignore the value.
            widths = [int(self.mode == "constant" and width > 0) for width in self.pad]
            F.pad(torch.zeros([1] * len(extents), dtype=dtype, device="cpu"), widths, self.mode, self.value)

    def _crop(self, d: int, left: int, right: int, blocks: list[Interval]) -> tuple[int, int, list[Interval]]:
        """Crop a dimension by its negative widths, without communication.

        Returns:
            The remaining padding on the left and on the right, and the blocks of the cropped tensor.
        """
        n = blocks[-1][1]
        low, high = max(-left, 0), n - max(-right, 0)
        left, right = max(left, 0), max(right, 0)
        if max(left, right) > max(high - low, 0):
            raise RuntimeError(
                f"{type(self).__name__}: pad={self.pad} leaves {max(high - low, 0)} of {n} elements in dimension {d}; "
                "at most so many can be wrapped"
            )
        cropped = [(min(max(start, low), high), max(min(stop, high), low)) for start, stop in blocks]
        if self.grid.active:
            place = self.grid.place[d]
            (start, end), (first, stop) = blocks[place], cropped[place]
            self._crops.append((d, min(max(first, start), end) - start, stop - first))
        return left, right, [(start - low, stop - low) for start, stop in cropped]

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        no_width = (0, 0) * (len(self.pad) // 2)
        dims = len(self.grid.shape) or input.dim()
        input = as_under_autocast(input, lambda x: F.pad(x, no_width, self.mode), dims)
        for crop in self._crops:
            input = input.narrow(*crop)
        if self._read is not None:
            return self._read(input)
        return input.clone() if self.grid.active else empty_result(input)

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        return tuple(_MODE_OF)

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        mode = next(_MODE_OF[kind] for kind in type(module).__mro__ if kind in _MODE_OF)
        return {"pad": module.padding, "mode": mode, "value": getattr(module, "value", None)}
