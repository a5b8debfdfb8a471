"""Max pooling over windows at random places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import torch
import torch.nn.functional as F

from distdl import _core, operators
from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import (
    Check,
    Converted,
    PositiveSizes,
    PositiveSizesOrNone,
    named,
    option,
    with_options,
)
from distdl.nn.base.precision import FLOATING
from distdl.nn.windows.blocks import naming_layer
from distdl.nn.windows.layer import WindowLayer
from distdl.nn.windows.sums import ravel
from distdl.partitions.boxes import Interval, block_intervals

__all__ = ["DistributedFractionalMaxPool2d", "DistributedFractionalMaxPool3d"]


def _ratios(layer: WindowLayer, value: float | Sequence[float], name: str) -> tuple[float, ...]:
    ratios = tuple(map(float, value if isinstance(value, tuple | list) else (value,) * layer.dims))
    if len(ratios) != layer.dims or not all(0 < ratio < 1 for ratio in ratios):
        raise ValueError(
            f"{type(layer).__name__}: {name}={value!r}; it must be between 0 and 1, for all {layer.dims} spatial "
            "dimensions or for each of them"
        )
    return ratios


def _random_samples(layer: str, value: object, name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{layer}: {name}={value!r}; it has to be a tensor")
    if not value.is_meta and not bool(value.isfinite().all()):
        raise ValueError(f"{layer}: {name}={value!r}; they have to be finite")
    return value


Ratios: TypeAlias = Annotated[Converted[tuple[float, ...] | None, float | tuple[float, ...] | None], Check(_ratios)]


class FractionalWindows:
    """The windows along a dimension: a fixed number, at about equal distances.

    Window i of m begins at one of the two integers around i * (n - kernel) / (m - 1), the last window at n - kernel.
    """

    def __init__(self, kernel: int, size: int | None, ratio: float | None) -> None:
        self.kernel, self.size, self.ratio = kernel, size, ratio
        self.eps = 0.0  # of the dtype of the computed places

    def outputs(self, n: int) -> int:
        return self.size if self.size is not None else int(n * (self.ratio or 0.0))

    def step(self, n: int) -> float:
        m = self.outputs(n)
        return (n - self.kernel) / (m - 1) if m > 1 else 0.0

    def reads(self, n: int, outputs: Interval) -> Interval:
        (start, stop), last = outputs, n - self.kernel
        if start >= stop:
            return 0, 0
        slack = 1 + math.ceil(4 * n * self.eps)
        low = max(0, min(last, int(start * self.step(n)) - slack))
        high = n if stop == self.outputs(n) else min(n, int((stop - 1) * self.step(n)) + 1 + slack + self.kernel)
        return low, high

    def aligned_blocks(self, sizes: Sequence[int]) -> list[int]:
        return _core.AdaptiveWindows(self.outputs(sum(sizes))).aligned_blocks(sizes)

    def starts(self, n: int, samples: torch.Tensor, outputs: Interval) -> torch.Tensor:
        """The starts of the windows of some outputs, for each sample, in the steps and precision of torch."""
        m, last = self.outputs(n), n - self.kernel
        at = torch.arange(*outputs, device=samples.device)
        whole, count = (torch.tensor(n, dtype=samples.dtype, device=samples.device) for n in (last, max(m - 1, 1)))
        step, each = whole / count, samples.unsqueeze(-1)
        starts = ((at.to(samples.dtype) + each) * step).long() - (each * step).long()
        return starts.clamp(0, last).where(at < m - 1, last)


@with_options
class _DistributedFractionalMaxPool(WindowLayer):
    kernel_size: PositiveSizes
    output_size: PositiveSizesOrNone = option(default=None)
    output_ratio: Ratios = option(default=None)
    return_indices: bool = False
    _random_samples: Annotated[torch.Tensor, named(_random_samples)] | None = None
    _functions = {2: F.fractional_max_pool2d, 3: F.fractional_max_pool3d}
    accepted = FLOATING

    def check_options(self) -> None:
        super().check_options()
        self.register_buffer("_random_samples", self.__dict__.pop("_random_samples"))
        if (self.output_size is None) == (self.output_ratio is None):
            raise ValueError(
                f"{type(self).__name__}: output_size={self.output_size!r} and output_ratio={self.output_ratio!r}; "
                "exactly one of them has to be given"
            )

    def prepare(self) -> None:
        super().prepare()
        workers = self.grid.line(self.grid.ranks)
        # All workers use the first worker's samples, in any states of their generators.
        self._to_all_workers = operators.broadcast(self.grid.line(self.grid.ranks[:1]), workers)

    def resizings(self) -> list[FractionalWindows]:
        unset = (None,) * self.dims
        options = zip(self.kernel_size, self.output_size or unset, self.output_ratio or unset, strict=True)
        self._windows = [FractionalWindows(*each) for each in options]
        return self._windows

    def set_up(self) -> None:
        for windows in self._windows:
            windows.eps = torch.finfo(dtype).eps if (dtype := self.structure(self.grid)[0][1]).is_floating_point else 0
        super().set_up()
        if self.grid.active:
            leading = [block_intervals(along) for along in self.blocks(self.grid)[: -self.dims]]
            blocks = [along[i] for along, i in zip(leading, self.grid.place, strict=False)]
            self._leading = tuple(slice(*block) for block in ([(0, 1)] * (2 - len(blocks)) + blocks))

    def check_input(self, dtype: torch.dtype) -> None:
        super().check_input(dtype)
        with naming_layer(type(self).__name__):
            if self._random_samples is not None:
                samples = torch.empty_like(self._random_samples, device="meta")
                if self.autocast is not None:  # autocast gives both the same dtype
                    samples = samples.to(dtype)
            else:
                samples = torch.empty(self._samples_shape(), dtype=dtype, device="meta")
            x = torch.empty(self.extents, dtype=dtype, device="meta")
            self._functions[self.dims](x, self.kernel_size, self.output_size, self.output_ratio, False, samples)

    def _samples_shape(self) -> list[int]:
        return [1] * (self.dims + 2 - len(self.extents)) + self.extents[: -self.dims] + [self.dims]

    def _samples(self, read: torch.Tensor) -> torch.Tensor:
        samples = self._random_samples
        if samples is None:
            _, dtype = self.structure(self.grid)[0]
            drawn = torch.rand(self._samples_shape(), dtype=dtype, device=read.device).to(read.dtype)
            samples = self._to_all_workers(drawn if self.grid.rank == 0 else drawn.flatten()[:0])
        samples = samples[self._leading]
        return samples if read.dim() == self.dims + 2 else samples[0]

    def on_one_element(self, x: torch.Tensor) -> torch.Tensor:
        samples = x.new_zeros([1, 1, self.dims])
        two = x.repeat(1, 1, *[2] * self.dims)  # torch requires an input larger than the result
        pooled: torch.Tensor = self._functions[self.dims](two, 1, 1, _random_samples=samples)
        return pooled

    def outputs(self, read: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        samples, positions = self._samples(read), []
        ends = [*(1,) * self.dims]
        for d, (windows, along) in enumerate(zip(self._windows, self.axes, strict=True)):
            # torch's 2-d layer uses the first sample for the last dimension, its 3-d layer for the first dimension.
            sample = samples[..., self.dims - 1 - d if self.dims == 2 else d]
            starts = windows.starts(along.n, sample, along.outputs) - along.reads[0]
            at = starts.unsqueeze(-1) + torch.arange(windows.kernel, device=read.device)
            shape = [*ends[:d], at.shape[-2], *ends[d + 1 :], *ends[:d], windows.kernel, *ends[d + 1 :]]
            positions.append(at.view([*samples.shape[:-1], *shape]))
        boxes = ravel(positions, read.shape[-self.dims :]).flatten(-self.dims)
        flat = read.flatten(-self.dims)
        chosen = boxes.gather(-1, self._largest(flat.detach(), boxes)).squeeze(-1)
        pooled = flat.gather(-1, chosen.flatten(-self.dims)).view(chosen.shape)
        return (pooled, self._to_global(chosen, read)) if self.return_indices else pooled

    def _largest(self, flat: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        """The element of each window that torch takes: the first of the largest, or the last nan."""
        windows = flat.gather(-1, boxes.flatten(-self.dims - 1)).view(boxes.shape)
        largest = windows.max(-1, keepdim=True).indices
        nan = windows.isnan()
        last_nan = nan.shape[-1] - 1 - nan.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
        return last_nan.where(nan.any(-1, keepdim=True), largest)

    def _to_global(self, chosen: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """Convert positions in the box that this worker read to positions in the whole tensor, flattened over space."""
        if chosen.numel() == 0:
            return chosen
        positions = zip(torch.unravel_index(chosen, read.shape[-self.dims :]), self.axes, strict=True)
        return ravel([at + along.reads[0] for at, along in positions], self.extents[-self.dims :])

    def without_outputs(self, read: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return (read, read.new_zeros(read.shape, dtype=torch.long)) if self.return_indices else read


_FRACTIONAL_POOL_DOC = """Applies {dims}-d fractional max pooling: ``torch.nn.FractionalMaxPool{dims}d`` in blocks.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``.
        kernel_size, output_size, output_ratio, return_indices: as in ``torch.nn.FractionalMaxPool{dims}d``. Indices
            count in the whole tensor.
        _random_samples: for each channel the numbers that place its windows, ``(N, C, {dims})`` of the whole tensor,
            equal on all ranks.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the sizes allow.

    Without samples, each worker draws samples of the whole tensor from torch's generator, and all use the first
    worker's: with the same seed the samples of torch.nn.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, as P_x, in any blocks. The result of torch.nn is in the same blocks of
        batch and channels, and in balanced or aligned blocks of space.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is invalid.
        ValueError, TypeError, RuntimeError, NotImplementedError: on all ranks, for options, an input size or a dtype
            that torch.nn refuses.

    Source: B. Graham, "Fractional Max-Pooling" (2014);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.FractionalMaxPool{dims}d.html.
    """
_, DistributedFractionalMaxPool2d, DistributedFractionalMaxPool3d = family(
    "DistributedFractionalMaxPool{dims}d", _FRACTIONAL_POOL_DOC, _DistributedFractionalMaxPool
)
