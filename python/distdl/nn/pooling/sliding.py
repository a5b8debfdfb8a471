"""Max and average pooling over blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, TypeAlias

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import (
    Flag,
    Integer,
    IntegerFlag,
    PositiveSizes,
    PositiveSizesOrNone,
    Sizes,
    must,
    option,
    with_options,
)  # fmt: skip
from distdl.nn.windows.layer import WindowLayer
from distdl.nn.windows.sums import ravel, window_sums

__all__ = [
    "DistributedAvgPool1d",
    "DistributedAvgPool2d",
    "DistributedAvgPool3d",
    "DistributedMaxPool1d",
    "DistributedMaxPool2d",
    "DistributedMaxPool3d",
]

Pool = Callable[..., torch.Tensor]
Divisor: TypeAlias = Annotated[Integer, must(lambda value: value != 0, "not be zero", RuntimeError)]


class SlidingPool(WindowLayer):
    """The common part of max, average and power-average pooling: options and windows."""

    kernel_size: PositiveSizes
    stride: PositiveSizesOrNone
    padding: Sizes
    dilation: PositiveSizes
    ceil_mode: Flag

    def check_options(self) -> None:
        super().check_options()
        self.stride = self.kernel_size if self.stride is None else self.stride
        for which, default in (("padding", 0), ("dilation", 1)):  # for layers without these options
            self.__dict__.setdefault(which, (default,) * self.dims)
        for kernel, pad in zip(self.kernel_size, self.padding, strict=True):
            if not 0 <= 2 * pad <= kernel:
                raise RuntimeError(
                    f"{type(self).__name__}: padding={pad} with kernel_size={kernel}; it must be at least 0 and at "
                    "most half of the kernel"
                )

    def resizings(self) -> list[_core.Window]:
        options = zip(self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        return [_core.Window(kernel, step, (pad, pad), spread, self.ceil_mode) for kernel, step, pad, spread in options]


@with_options
class _DistributedMaxPool(SlidingPool):
    kernel_size: PositiveSizes
    stride: PositiveSizesOrNone = option(default=None)
    padding: Sizes = option(default=0)
    dilation: PositiveSizes = option(default=1)
    return_indices: IntegerFlag = False
    ceil_mode: Flag = False
    _functions = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
    fill_value = -math.inf

    def on_one_element(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self._functions[self.dims](x, 1, return_indices=self.return_indices)
        return pooled[0] if self.return_indices else pooled

    def outputs(self, read: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        indices = read.new_zeros((), dtype=torch.long)

        def compute(x: torch.Tensor) -> torch.Tensor:
            nonlocal indices
            # torch accepts gradients of any strides, except for 3-d windows without batch.
            alone = self.dims == 3 and x.dim() == 4
            pooled, indices = self._functions[self.dims](
                x.unsqueeze(0) if alone else x, self.kernel_size, self.stride, 0, self.dilation, return_indices=True
            )
            if alone:
                pooled, indices = pooled.squeeze(0), indices.squeeze(0)
            lowest = lowest_of(x.dtype)
            if min(self._starts()) < 0 and bool((pooled == lowest).any()):
                indices = self._inside(indices, x)
                inside = x.flatten(-self.dims).gather(-1, indices.flatten(-self.dims)).view_as(pooled)
                pooled = torch.where(pooled == lowest, inside, pooled)
            return pooled

        pooled = self.on_block(compute, read)
        if not self.return_indices:
            return pooled
        if pooled.numel() == 0:
            return pooled, pooled.new_zeros(pooled.shape, dtype=torch.long)
        return pooled, self._to_global(indices, read)

    def without_outputs(self, read: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return (read, read.new_zeros(read.shape, dtype=torch.long)) if self.return_indices else read

    def _starts(self) -> list[int]:
        """The start of the box that this worker read in the whole tensor; negative in the padding."""
        return [along.reads[0] for along in self.axes]

    def _inside(self, indices: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """Move positions in the padding to the first element of the tensor in the window, as torch.nn does.

        A window has its maximum in the padding if no element is larger than the padding.
        """
        sizes = read.shape[-self.dims :]
        steps = zip(torch.unravel_index(indices, sizes), self._starts(), self.dilation, strict=True)
        return ravel([at + ((-start - at).clamp(min=0) + d - 1) // d * d for at, start, d in steps], sizes)

    def _to_global(self, indices: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """Convert positions in the box that this worker read to positions in the whole tensor, flattened over space."""
        positions = zip(torch.unravel_index(indices, read.shape[-self.dims :]), self._starts(), strict=True)
        return ravel([at + start for at, start in positions], self.extents[-self.dims :])


def lowest_of(dtype: torch.dtype) -> float:
    """The lowest value of a dtype: the padding of max pooling."""
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


class AveragingPool(SlidingPool):
    """The common part of average and power-average pooling: sums over windows and their divisors."""

    count_include_pad: Flag = True
    divisor_override: Divisor | None = None

    def check_input(self, dtype: torch.dtype) -> None:
        super().check_input(dtype)
        space = self.extents[-self.dims :]
        if self.dims == 3 and any(n < k for n, k in zip(space, self.kernel_size, strict=True)):  # padding does not help
            raise RuntimeError(
                f"{type(self).__name__}: the input has {space} elements in space and kernel_size={self.kernel_size}; "
                "as in torch.nn, a 3-d window may not be larger than the input"
            )

    _averages: ClassVar[Mapping[int, Pool]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}

    def on_one_element(self, x: torch.Tensor) -> torch.Tensor:
        return self._averages[self.dims](x, 1)

    def outputs(self, read: torch.Tensor) -> torch.Tensor:
        return self.on_block(self.pool, read)

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        """Sums over the windows, divided by torch.nn's divisors, which differ at the edges of the tensor."""
        sums = window_sums(x, self.kernel_size, self.stride)
        divisors = torch.ones((), dtype=sums.dtype, device=sums.device)
        if self.divisor_override is not None:
            divisors = divisors * self.divisor_override
        else:
            for d, counts in enumerate(self._counts()):
                divisors = divisors * torch.tensor(counts, dtype=sums.dtype, device=sums.device).view(
                    -1, *(1,) * (self.dims - 1 - d)
                )
        rounding = None if x.is_floating_point() else "trunc"
        return torch.div(sums, divisors, rounding_mode=rounding).to(x.dtype)

    def _counts(self) -> list[list[int]]:
        """The number of elements that each of this worker's windows counts, by dimension."""
        counts = []
        for d, along in enumerate(self.axes):
            pad = self.padding[d]
            low, high = (-pad, along.n + pad) if self.count_include_pad else (0, along.n)
            starts = [o * self.stride[d] - pad for o in range(*along.outputs)]
            # As in torch.nn, windows are cut off at the end of the padding, even if they count the padding.
            counts.append([min(start + self.kernel_size[d], high) - max(start, low) for start in starts])
        return counts


@with_options
class _DistributedAvgPool(AveragingPool):
    kernel_size: PositiveSizes
    stride: PositiveSizesOrNone = option(default=None)
    padding: Sizes = option(default=0)
    ceil_mode: Flag = False
    count_include_pad: Flag = True
    divisor_override: Divisor | None = None


_POOL_DOC = """Applies {dims}-d {kind} pooling to a partitioned tensor: ``torch.nn.{twin}{dims}d`` in blocks.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``.
        {options}: as in ``torch.nn.{twin}{dims}d``.{indices}
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the stride allows.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, as P_x, in any blocks. The result of torch.nn is in the same blocks of
        batch and channels, and in balanced or aligned blocks of space.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is invalid.
        RuntimeError: on all ranks, for options or an input size that torch.nn refuses.

    Source: R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model Parallelism in Deep Learning" (2020);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.{twin}{dims}d.html.
    """
DistributedMaxPool1d, DistributedMaxPool2d, DistributedMaxPool3d = family(
    "DistributedMaxPool{dims}d",
    _POOL_DOC,
    _DistributedMaxPool,
    kind="max",
    twin="MaxPool",
    options="kernel_size, stride, padding, dilation, return_indices, ceil_mode",
    indices=" Indices count in the whole tensor.",
)
DistributedAvgPool1d, DistributedAvgPool2d, DistributedAvgPool3d = family(
    "DistributedAvgPool{dims}d",
    _POOL_DOC,
    _DistributedAvgPool,
    kind="average",
    twin="AvgPool",
    options="kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override",
    indices="",
)
