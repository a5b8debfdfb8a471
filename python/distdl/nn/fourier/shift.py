"""Shifts of a spectrum in blocks that move frequency 0 to the middle, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from distdl import operators
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import with_options
from distdl.nn.fourier.kinds import Dims, plain
from distdl.nn.windows.blocks import naming_layer
from distdl.operators.dispatch import Operator
from distdl.partitions.boxes import block_intervals


@with_options
class Shift(Layer):
    """A shift of torch.fft of a tensor in blocks, in a single exchange for all dimensions. Derived classes name it.

    Args:
        P_x: the partition of the input and of the result, which has the same blocks.
    """

    dim: Dims = None
    function: ClassVar[Callable[..., torch.Tensor]]
    sign: ClassVar[int]

    def check_options(self) -> None:
        if self.grid.known:
            self._shifted([1] * self.grid.dim)

    def _shifted(self, extents: Sequence[int]) -> list[int]:
        """The shift of each dimension, in elements. A dimension named twice is shifted twice."""
        with naming_layer(type(self).__name__):
            type(self).function(torch.zeros([1] * len(extents), device="cpu"), self.dim)  # torch checks the argument
        dim = plain(self.dim)
        dims = range(len(extents)) if dim is None else [dim] if isinstance(dim, int) else dim
        shifts = [0] * len(extents)
        for d in dims:
            n = extents[d]
            shifts[d] += n // 2 if self.sign > 0 else n - n // 2
        return shifts

    def prepare(self) -> None:
        self._exchange: Operator | None = None

    def set_up(self) -> None:
        sizes = self.blocks(self.grid)
        extents = [sum(along) for along in sizes]
        shifts = [shift % n if n else 0 for shift, n in zip(self._shifted(extents), extents, strict=True)]
        self._exchange = None
        if any(shift and p > 1 for shift, p in zip(shifts, self.grid.shape, strict=True)):
            wanted = [
                [(start - shift, stop - shift) if start < stop else (0, 0) for start, stop in block_intervals(along)]
                for along, shift in zip(sizes, shifts, strict=True)
            ]
            periodic = [shift > 0 for shift in shifts]
            name = type(self).__name__
            self._exchange = operators.interval_exchange(name, self.grid, self.grid, wanted, periodic)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return input.clone()
        return type(self).function(input, self.dim) if self._exchange is None else self._exchange(input)


def _shift_layer(function: Callable[..., torch.Tensor], sign: int) -> type[Shift]:
    attributes = {"function": staticmethod(function), "sign": sign, "__doc__": Shift.__doc__}
    return type(function.__name__.removeprefix("fft_"), (Shift,), attributes)


SHIFTS = {"fftshift": _shift_layer(torch.fft.fftshift, 1), "ifftshift": _shift_layer(torch.fft.ifftshift, -1)}
"""The layers of torch.fft's shifts."""
