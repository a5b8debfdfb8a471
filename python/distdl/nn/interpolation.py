"""Interpolation over blocks: up- and downsampling."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex

import torch

from distdl._load import _core
from distdl.construction import constructing, constructor
from distdl.nn.resizing import FLOATING, ResizingLayer
from distdl.nn.window import check_output_blocks

_SPATIAL_DIMENSIONS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}  # of the modes with weights
_ANY_DIMENSIONS = ("nearest", "nearest-exact", "area")
_TAPS = {"nearest": 1, "nearest-exact": 1, "linear": 2, "cubic": 4}
_VECTORIZED = 128  # results of torch in 2-d with at most as many rows and columns are computed by vectorized kernels

_Tables = list[tuple[torch.Tensor, torch.Tensor]]


class DistributedUpsample(ResizingLayer):
    """Resizes a partitioned tensor in space: ``torch.nn.Upsample``, put together.

    A worker receives the inputs that its block of the result is interpolated from, and no others.

    Args:
        P_x: the partition of input and output, ``[batch, channels, *space]`` with one to three spatial dimensions.
        size, scale_factor, mode, align_corners, recompute_scale_factor: as in ``torch.nn.Upsample``; mode may also be
            'nearest-exact' or 'area', as in ``torch.nn.functional.interpolate``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input's are, as far as the sizes let it.

    Shape:
        ``(N, C, *space)`` in any blocks; out comes what ``torch.nn.Upsample`` gives, in the same blocks of batch and
        channels and in balanced or aligned blocks of space. Zero volume on all other ranks.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is not as described.
        ValueError, TypeError, NotImplementedError: on all ranks, where torch.nn raises them for the options.
        RuntimeError: on all workers, if the input or the output would have size 0 in space.
        NotImplementedError: on all workers, for a dtype that torch.nn refuses; and for uint8 in the modes that compute
            weighted sums.

    The inputs that are read and their weights are computed in the steps in which torch computes them, in the same
    precision. Where torch's kernels disagree on the nearest input, as some do in double precision or for a fractional
    scale_factor, the result is that of a tensor with contiguous memory, and gradients are those of this result.

    Constructing is collective over the communicator that P_x comes from, calling over its workers.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Upsample.html and
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html.
    """

    @constructor
    def __init__(
        self,
        P_x: Any,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        *,
        output_blocks: str = "balanced",
    ) -> None:
        super().__init__()
        self.output_blocks = output_blocks
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor
        options = {
            "size": size, "scale_factor": scale_factor, "mode": mode, "align_corners": align_corners,
            "recompute_scale_factor": recompute_scale_factor, "output_blocks": output_blocks,
        }  # fmt: skip
        with constructing("DistributedUpsample", {"P_x": P_x}, options) as (self.P_x,):
            check_output_blocks("DistributedUpsample", output_blocks)
            resizings = self._resizings_of(self.P_x) if self.P_x._root is not None else []
        self.dims = len(resizings)
        self._resize(resizings)
        self._tables: tuple[Any, _Tables] = (None, [])

    def _resizings_of(self, P_x: Any) -> list[Any]:
        """One for each spatial dimension; raises what torch.nn.functional.interpolate raises."""
        shape, mode = list(P_x._shape), self.mode
        if len(shape) not in (3, 4, 5):
            raise ValueError(
                f"DistributedUpsample: P_x has shape {shape}; it needs batch, channels and one to three spatial "
                "dimensions"
            )
        dims = len(shape) - 2
        if mode in _ANY_DIMENSIONS and self.align_corners is not None:
            raise ValueError(
                f"DistributedUpsample: align_corners={self.align_corners} with mode={mode!r}; it can only be set for "
                f"{', '.join(_SPATIAL_DIMENSIONS)}"
            )
        sizes, factors = self._sizes(dims), self._factors(dims)
        if mode not in _ANY_DIMENSIONS and _SPATIAL_DIMENSIONS.get(mode) != dims:
            raise NotImplementedError(
                f"DistributedUpsample: mode={mode!r} with {dims} spatial dimensions; there are "
                f"{', '.join(_ANY_DIMENSIONS)} for any number and {_SPATIAL_DIMENSIONS}"
            )
        each = list(zip(sizes, factors, strict=True))
        if mode == "area":
            return [_core.AdaptiveWindows(size, factor) for size, factor in each]
        self._kernel = mode if mode in _TAPS else "cubic" if mode == "bicubic" else "linear"
        keeps_factor = self.size is None and not self.recompute_scale_factor
        corners = bool(self.align_corners)
        return [_core.Interpolation(self._kernel, size, factor, corners, keeps_factor) for size, factor in each]

    def _sizes(self, dims: int) -> list[int | None]:
        if (self.size is None) == (not self.scale_factor):
            raise ValueError(
                f"DistributedUpsample: size={self.size!r} and scale_factor={self.scale_factor!r}; exactly one of them "
                "has to be given"
            )
        if self.size is None:
            return [None] * dims
        if self.recompute_scale_factor:
            raise ValueError("DistributedUpsample: recompute_scale_factor means nothing where size is given")
        given = list(self.size) if isinstance(self.size, Sequence) else [self.size] * dims
        _check_length("size", given, dims)
        if not all(isinstance(size, SupportsIndex) for size in given):
            raise TypeError(f"DistributedUpsample: size={self.size!r}; it has to be an int or a tuple of ints")
        return [index(size) for size in given]

    def _factors(self, dims: int) -> list[float]:
        if self.size is not None:
            return [1.0] * dims
        given: list[Any] = (
            list(self.scale_factor) if isinstance(self.scale_factor, Sequence) else [self.scale_factor] * dims
        )
        _check_length("scale_factor", given, dims)
        try:
            return [float(factor) for factor in given]
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"DistributedUpsample: scale_factor={self.scale_factor!r}; it has to be a number or a tuple of numbers"
            ) from error

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer. Collective over the workers of P_x."""
        read = self._exchange(input)
        if not self.P_x.active:
            return read
        if self.mode == "area":
            return self._average(read)
        self._check_extents(self.dims + 1)
        weighted = self._kernel in ("linear", "cubic")
        self._check_dtype(read.dtype, FLOATING if weighted else (*FLOATING, torch.uint8))
        result = read.float() if weighted and read.dtype in (torch.half, torch.bfloat16) else read
        # The last dimension first, as in torch's kernels.
        for d, (inputs, weights) in reversed(list(enumerate(self._taps(read.dtype), start=-self.dims))):
            taps = [result.index_select(d, one) for one in inputs]
            if not weighted:
                (result,) = taps
                continue
            factors = weights.to(result.dtype).view(len(taps), -1, *[1] * (-d - 1))
            # Rounded as in torch's kernels, which are compiled to round the second product and fuse the others.
            result = taps[1] * factors[1]
            for i in (0, *range(2, len(taps))):
                result = torch.addcmul(result, taps[i], factors[i])
        return result.to(read.dtype)

    def _taps(self, dtype: torch.dtype) -> _Tables:
        """For each spatial dimension (taps, outputs) positions in what this worker read, and their weights."""
        structure = (self._exchange.outputs, self._input_extents(), dtype)
        if self._tables[0] != structure:
            extents = [sum(sizes) for sizes in self._exchange.outputs[-self.dims :]]
            vectorized = self.dims == 2 and sum(extents) <= _VECTORIZED
            tables = []
            for resizing, n, outputs, (start, _) in self._own():
                inputs, weights = resizing.taps(n, outputs, dtype == torch.double, vectorized)
                shape = (_TAPS[self._kernel], outputs[1] - outputs[0])
                positions = torch.tensor(inputs, dtype=torch.long).view(shape) - start
                tables.append((positions, torch.tensor(weights, dtype=torch.double).view(shape)))
            self._tables = (structure, tables)
        return self._tables[1]

    def extra_repr(self) -> str:
        """Options and the partition."""
        by = f"scale_factor={self.scale_factor}" if self.size is None else f"size={self.size}"
        return (
            f"{by}, mode={self.mode!r}, align_corners={self.align_corners}, output_blocks={self.output_blocks!r}, "
            f"P_x={self.P_x}"
        )


def _check_length(name: str, given: Sequence[Any], dims: int) -> None:
    if len(given) != dims:
        raise ValueError(
            f"DistributedUpsample: {name}={given!r} has {len(given)} values; the tensor has {dims} spatial dimensions"
        )
