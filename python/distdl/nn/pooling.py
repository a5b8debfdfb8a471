"""Pooling over blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import torch
import torch.nn.functional as F

from distdl._load import _core
from distdl.construction import constructing, constructor
from distdl.nn.window import WindowLayer, check_output_blocks, per_dimension


class SlidingPool(WindowLayer):
    """What max, average and power-average pooling have in common: options and windows."""

    def _set_up(
        self, P_x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, fill: float,
        others: dict[str, Any],
    ) -> None:  # fmt: skip
        name = type(self).__name__
        options = {
            "kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation,
            "output_blocks": self.output_blocks,
        }  # fmt: skip
        with constructing(name, {"P_x": P_x}, {**options, "ceil_mode": ceil_mode, **others}) as (self.P_x,):
            self._check_partition()
            check_output_blocks(name, self.output_blocks)
            self._check_others()
            self.kernel_size = per_dimension(name, kernel_size, self.dims, "kernel_size")
            self.stride = per_dimension(name, kernel_size if stride is None else stride, self.dims, "stride")
            self.padding = per_dimension(name, padding, self.dims, "padding")
            self.dilation = per_dimension(name, dilation, self.dims, "dilation")
            self.ceil_mode = bool(ceil_mode)
            if any(value < 1 for value in (*self.kernel_size, *self.stride, *self.dilation)):
                raise RuntimeError(
                    f"{name}: kernel_size={self.kernel_size}, stride={self.stride}, dilation={self.dilation}; all must "
                    "be at least 1"
                )
            for kernel, pad in zip(self.kernel_size, self.padding, strict=True):
                if not 0 <= 2 * pad <= kernel:
                    raise RuntimeError(
                        f"{name}: padding={pad} with kernel_size={kernel}; it must be at least 0 and at most half "
                        "of the kernel"
                    )
        windows = [
            _core.Window(kernel, step, (pad, pad), spread, self.ceil_mode)
            for kernel, step, pad, spread in zip(
                self.kernel_size, self.stride, self.padding, self.dilation, strict=True
            )
        ]
        self._resize(windows, fill)

    def _check_others(self) -> None:
        """Check options that only some of these layers have, while constructing."""

    def _apply_locally(self, compute: Callable[[torch.Tensor], torch.Tensor], read: torch.Tensor) -> torch.Tensor:
        """The local layer; where it has no outputs to compute, the local layer of an empty batch.

        So the graph is the same on all workers, and second derivatives communicate on all of them or on none.
        """
        shape = [*read.shape[: -self.dims], *(stop - start for start, stop in self._output_intervals())]
        if 0 not in shape:
            return compute(read)
        reaches = [d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        return compute(read.flatten()[:0].view(0, read.shape[-self.dims - 1] or 1, *reaches)).reshape(shape)

    def extra_repr(self) -> str:
        """Options and the partition."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}, output_blocks={self.output_blocks!r}, P_x={self.P_x}"
        )


class _DistributedMaxPool(SlidingPool):
    _functions = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}

    @constructor
    def __init__(
        self,
        P_x: Any,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        *,
        output_blocks: str = "balanced",
    ) -> None:
        super().__init__()
        self.return_indices, self.output_blocks = return_indices, output_blocks
        others = {"return_indices": return_indices}
        self._set_up(P_x, kernel_size, stride, padding, dilation, ceil_mode, -math.inf, others)

    def forward(self, input: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Apply the layer. Collective over the workers of P_x."""
        read = self._exchange(input)
        if not self.P_x.active:
            return (read, read.new_zeros(read.shape, dtype=torch.long)) if self.return_indices else read
        self._check_extents(self.dims + 1)
        indices = read.new_zeros((), dtype=torch.long)

        def compute(x: torch.Tensor) -> torch.Tensor:
            nonlocal indices
            pooled, indices = self._functions[self.dims](
                x, self.kernel_size, self.stride, 0, self.dilation, return_indices=True
            )
            lowest = lowest_of(x.dtype)
            if min(self._starts()) < 0 and bool((pooled == lowest).any()):
                indices = self._inside(indices, x)
                inside = x.flatten(-self.dims).gather(-1, indices.flatten(-self.dims)).view_as(pooled)
                pooled = torch.where(pooled == lowest, inside, pooled)
            return pooled

        pooled = self._apply_locally(compute, read)
        if not self.return_indices:
            return pooled
        if pooled.numel() == 0:
            return pooled, pooled.new_zeros(pooled.shape, dtype=torch.long)
        return pooled, self._to_global(indices, read)

    def _starts(self) -> list[int]:
        """Where what this worker read begins in the global tensor; negative in the padding."""
        return [start for *_, (start, _) in self._own()]

    def _inside(self, indices: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """From the padding to the first element behind it that the window reads: where torch.nn finds no larger one."""
        sizes = read.shape[-self.dims :]
        steps = zip(torch.unravel_index(indices, sizes), self._starts(), self.dilation, strict=True)
        return ravel([at + ((-start - at).clamp(min=0) + d - 1) // d * d for at, start, d in steps], sizes)

    def _to_global(self, indices: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """From positions in what this worker read to positions in the global tensor, both flattened over space."""
        positions = zip(torch.unravel_index(indices, read.shape[-self.dims :]), self._starts(), strict=True)
        return ravel([at + start for at, start in positions], self._input_extents()[-self.dims :])


def ravel(positions: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """The positions in a flattened tensor of these sizes: the inverse of ``torch.unravel_index``."""
    flat = positions[0]
    for at, size in zip(positions[1:], sizes[1:], strict=True):
        flat = flat * size + at
    return flat


def lowest_of(dtype: torch.dtype) -> float:
    """What no element is below: the padding of max pooling."""
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def window_sums(x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """The sums over sliding windows, in the order and in the precision in which torch.nn adds; not rounded to x's."""
    wide = x.float() if x.dtype in (torch.half, torch.bfloat16) else x
    if len(kernel) == 1:  # avg_pool1d has no divisor_override
        return F.avg_pool2d(wide.unsqueeze(-2), (1, *kernel), (1, *stride), divisor_override=1).squeeze(-2)
    return (F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d)(wide, kernel, stride, divisor_override=1)


class AveragingPool(SlidingPool):
    """What average and power-average pooling have in common: sums over windows and what they are divided by."""

    count_include_pad = True
    divisor_override: int | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer. Collective over the workers of P_x."""
        read = self._exchange(input)
        if not self.P_x.active:
            return read
        self._check_extents(self.dims + 1)
        return self._apply_locally(self._pool, read)

    def _pool(self, x: torch.Tensor) -> torch.Tensor:
        """Sums over the windows, divided by what torch.nn divides by, which differs at the edges of the tensor."""
        sums = window_sums(x, self.kernel_size, self.stride)
        divisors = torch.ones((), dtype=sums.dtype)
        if self.divisor_override is not None:
            divisors = divisors * self.divisor_override
        else:
            for d, counts in enumerate(self._counts()):
                divisors = divisors * torch.tensor(counts, dtype=sums.dtype).view(-1, *(1,) * (self.dims - 1 - d))
        rounding = None if x.is_floating_point() else "trunc"
        return torch.div(sums, divisors, rounding_mode=rounding).to(x.dtype)

    def _counts(self) -> list[list[int]]:
        """For each dimension, how many elements each of this worker's windows counts along it."""
        counts = []
        for d, (_, n, (first, last), _) in enumerate(self._own()):
            pad = self.padding[d]
            low, high = (-pad, n + pad) if self.count_include_pad else (0, n)
            starts = [o * self.stride[d] - pad for o in range(first, last)]
            # As torch.nn has it, a window is cut off at the end of the padding, even if it counts the padding.
            counts.append([min(start + self.kernel_size[d], high) - max(start, low) for start in starts])
        return counts


class _DistributedAvgPool(AveragingPool):
    @constructor
    def __init__(
        self,
        P_x: Any,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        padding: int | tuple[int, ...] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        output_blocks: str = "balanced",
    ) -> None:
        super().__init__()
        self.output_blocks = output_blocks
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override
        others = {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
        self._set_up(P_x, kernel_size, stride, padding, 1, ceil_mode, 0.0, others)

    def _check_others(self) -> None:
        if self.divisor_override is not None and index(self.divisor_override) == 0:
            raise RuntimeError(f"{type(self).__name__}: divisor_override must not be zero")


_DOCUMENTATION = """Applies {dims}-d {kind} pooling to a partitioned tensor: ``torch.nn.{twin}{dims}d``, put together.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``.
        {options}: as in ``torch.nn.{twin}{dims}d``.{indices}
        output_blocks: 'balanced' in space, or 'aligned': cut where the input's are, as far as the stride lets it.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, as P_x has dimensions, in any blocks; out comes what
        ``torch.nn.{twin}{dims}d`` gives, in the same blocks of batch and channels and in balanced or aligned blocks of
        space. Zero volume on all other ranks.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is not as described.
        RuntimeError: on all ranks, if the options or the size of the input are what torch.nn refuses.

    Constructing is collective over the communicator that P_x comes from, calling over its workers.

    Source: R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model Parallelism in Deep Learning" (2020);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.{twin}{dims}d.html.
    """
_MAX = {
    "kind": "max",
    "twin": "MaxPool",
    "options": "kernel_size, stride, padding, dilation, return_indices, ceil_mode",
    "indices": " Indices are global: those of the whole tensor.",
}
_AVG = {
    "kind": "average",
    "twin": "AvgPool",
    "options": "kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override",
    "indices": "",
}


class DistributedMaxPool1d(_DistributedMaxPool):
    __doc__ = _DOCUMENTATION.format(dims=1, **_MAX)
    dims = 1


class DistributedMaxPool2d(_DistributedMaxPool):
    __doc__ = _DOCUMENTATION.format(dims=2, **_MAX)
    dims = 2


class DistributedMaxPool3d(_DistributedMaxPool):
    __doc__ = _DOCUMENTATION.format(dims=3, **_MAX)
    dims = 3


class DistributedAvgPool1d(_DistributedAvgPool):
    __doc__ = _DOCUMENTATION.format(dims=1, **_AVG)
    dims = 1


class DistributedAvgPool2d(_DistributedAvgPool):
    __doc__ = _DOCUMENTATION.format(dims=2, **_AVG)
    dims = 2


class DistributedAvgPool3d(_DistributedAvgPool):
    __doc__ = _DOCUMENTATION.format(dims=3, **_AVG)
    dims = 3
