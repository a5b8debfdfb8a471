"""Interpolation over blocks: up- and downsampling."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import ClassVar, SupportsIndex

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.nn.base.option_types import with_options
from distdl.nn.base.precision import FLOATING, wide
from distdl.nn.kernels.channels_last import selected
from distdl.nn.windows.adaptive import AdaptiveLayer

__all__ = ["DistributedUpsample"]

_SPATIAL_DIMENSIONS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}  # of interpolating modes
_ANY_DIMENSIONS = ("nearest", "nearest-exact", "area")
_TAPS = {"nearest": 1, "nearest-exact": 1, "linear": 2, "cubic": 4}
_VECTORIZED = 128  # torch uses its vectorized kernels for 2-d results of at most so many rows and columns together


@with_options
class DistributedUpsample(AdaptiveLayer):
    """Resizes a partitioned tensor in space: ``torch.nn.Upsample`` in blocks.

    A worker receives only the inputs of its block of the result.

    Args:
        P_x: the partition of input and output, ``[batch, channels, *space]`` with one to three spatial dimensions.
        size, scale_factor, mode, align_corners, recompute_scale_factor: as in ``torch.nn.Upsample``; mode may also be
            'nearest-exact' or 'area', as in ``torch.nn.functional.interpolate``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the sizes allow.

    Shape:
        ``(N, C, *space)`` in any blocks. The result is in the same blocks of batch and channels, and in balanced or
        aligned blocks of space.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is invalid.
        ValueError, TypeError, NotImplementedError: on all ranks, for options that torch.nn refuses.
        RuntimeError: on all workers, if the input or the output would have size 0 in space.
        NotImplementedError: on all workers, for a dtype that torch.nn refuses, and for uint8 in interpolating modes
            (linear, bilinear, bicubic, trilinear).

    Dimensions are interpolated in torch's order and with its rounding. Where torch picks other nearest inputs for
    channels_last tensors (double precision, fractional scale_factor), results are as for contiguous tensors.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Upsample.html and
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html.
    """

    size: int | tuple[int, ...] | None = None
    scale_factor: float | tuple[float, ...] | None = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None
    saves_input = False
    spatial_dims: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def check_options(self) -> None:
        self._by_dimension = self._resizings_of(list(self.grid.shape)) if self.grid.known else []
        self.dims = len(self._by_dimension)
        self._interpolates = self.mode not in _ANY_DIMENSIONS
        if self.mode != "area":
            self.accepted = FLOATING if self._interpolates else (*FLOATING, torch.uint8)

    def resizings(self) -> list[_core.AdaptiveWindows] | list[_core.Interpolation]:
        return self._by_dimension

    def _resizings_of(self, shape: list[int]) -> list[_core.AdaptiveWindows] | list[_core.Interpolation]:
        """For each spatial dimension, which inputs an output reads; raises the errors of ``F.interpolate``."""
        mode = self.mode
        if len(shape) - 2 not in self.spatial_dims:
            raise ValueError(
                f"{type(self).__name__}: P_x has shape {shape}; it needs batch, channels and "
                f"{' or '.join(map(str, self.spatial_dims))} spatial dimensions"
            )
        dims = len(shape) - 2
        if mode in _ANY_DIMENSIONS and self.align_corners is not None:
            raise ValueError(
                f"{type(self).__name__}: align_corners={self.align_corners} with mode={mode!r}; it can only be set for "
                f"{', '.join(_SPATIAL_DIMENSIONS)}"
            )
        sizes, factors = self._sizes(dims), self._factors(dims)
        if mode not in _ANY_DIMENSIONS and _SPATIAL_DIMENSIONS.get(mode) != dims:
            raise NotImplementedError(
                f"{type(self).__name__}: mode={mode!r} with {dims} spatial dimensions; there are "
                f"{', '.join(_ANY_DIMENSIONS)} for any number and {_SPATIAL_DIMENSIONS}"
            )
        each = list(zip(sizes, factors, strict=True))
        if mode == "area":
            return [_core.AdaptiveWindows(size, factor) for size, factor in each]
        self._kernel = kernel_of(mode)
        uses_given_factor = self.size is None and not self.recompute_scale_factor
        corners = bool(self.align_corners)
        return [_core.Interpolation(self._kernel, size, factor, corners, uses_given_factor) for size, factor in each]

    def _sizes(self, dims: int) -> list[int | None]:
        if (self.size is None) == (not self.scale_factor):
            raise ValueError(
                f"{type(self).__name__}: size={self.size!r} and scale_factor={self.scale_factor!r}; exactly one of "
                "them has to be given; a scale_factor of 0 counts as none, as in torch.nn"
            )
        if self.size is None:
            return [None] * dims
        if self.recompute_scale_factor:
            raise ValueError(f"{type(self).__name__}: recompute_scale_factor cannot be combined with size")
        sizes = list(self.size) if isinstance(self.size, Sequence) else [self.size] * dims
        _check_length(type(self).__name__, "size", sizes, dims)
        if not all(isinstance(size, SupportsIndex) for size in sizes):
            raise TypeError(f"{type(self).__name__}: size={self.size!r}; it has to be an int or a tuple of ints")
        return [index(size) for size in sizes]

    def _factors(self, dims: int) -> list[float]:
        if self.size is not None:
            return [1.0] * dims
        factors = list(self.scale_factor) if isinstance(self.scale_factor, Sequence) else [self.scale_factor] * dims
        _check_length(type(self).__name__, "scale_factor", factors, dims)
        try:
            return [float(factor) for factor in factors]  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{type(self).__name__}: scale_factor={self.scale_factor!r}; it has to be a number or a tuple of "
                "numbers"
            ) from error

    def set_up(self) -> None:
        super().set_up()
        dtype = self.structure(self.grid)[0][1]
        self._taps = [] if self.mode == "area" or not self.grid.active else self._taps_of(dtype)

    def on_one_element(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, 1, mode=self.mode)

    def nonempty_dims(self) -> int:
        return self.dims_of_average() if self.mode == "area" else super().nonempty_dims()

    def outputs(self, read: torch.Tensor) -> torch.Tensor:
        if self.mode == "area":
            return self.average(read)
        return interpolated(wide(read) if self._interpolates else read, self._taps, self._interpolates).to(read.dtype)

    def _taps_of(self, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The positions of the taps in the box that this worker read, and their weights, by spatial dimension.

        Both have the shape [taps, outputs].
        """
        vectorized = is_vectorized([along.m for along in self.axes])
        taps = []
        for resizing, along in zip(self._by_dimension, self.axes, strict=True):
            assert isinstance(resizing, _core.Interpolation)
            inputs, weights = resizing.taps(along.n, along.outputs, dtype == torch.double, vectorized)
            shape = (_TAPS[self._kernel], along.outputs[1] - along.outputs[0])
            positions = torch.tensor(inputs, dtype=torch.long, device="cpu").view(shape) - along.reads[0]
            taps.append((positions, torch.tensor(weights, dtype=torch.double, device="cpu").view(shape)))
        return taps


def kernel_of(mode: str) -> str:
    """The kernel along a dimension: linear for bilinear and trilinear, cubic for bicubic."""
    return mode if mode in _TAPS else "cubic" if mode == "bicubic" else "linear"


def is_vectorized(sizes: Sequence[int]) -> bool:
    """Whether torch's vectorized kernels, which round differently, compute a result of these sizes in space."""
    return len(sizes) == 2 and sum(sizes) <= _VECTORIZED


def interpolated(
    x: torch.Tensor, by_dimension: Sequence[tuple[torch.Tensor, torch.Tensor]], weighted: bool
) -> torch.Tensor:
    """Interpolate along the last dimensions, by positions in x and their weights, [taps, outputs] by dimension."""
    # The last dimension first, as in torch's kernels.
    for d, (inputs, weights) in reversed(list(enumerate(by_dimension, start=-len(by_dimension)))):
        taps = [selected(x, d, tap.to(x.device)) for tap in inputs]
        if not weighted:
            (x,) = taps
            continue
        factors = weights.to(x).view(len(taps), -1, *[1] * (-d - 1))
        # As in torch's kernels, the second product is rounded and the others are fused.
        x = taps[1] * factors[1]
        for i in (0, *range(2, len(taps))):
            x = torch.addcmul(x, taps[i], factors[i])
    return x


def _check_length(layer: str, name: str, sizes: Sequence[object], dims: int) -> None:
    if len(sizes) != dims:
        raise ValueError(f"{layer}: {name}={sizes!r} has {len(sizes)} values; the tensor has {dims} spatial dimensions")
