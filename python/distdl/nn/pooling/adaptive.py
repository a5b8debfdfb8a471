"""Adaptive pooling over blocks: a fixed number of outputs for inputs of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import common_options, with_options
from distdl.nn.base.options import integer
from distdl.nn.kernels.channels_last import selected
from distdl.nn.windows.adaptive import AdaptiveLayer
from distdl.nn.windows.sums import ravel

__all__ = [
    "DistributedAdaptiveAvgPool1d",
    "DistributedAdaptiveAvgPool2d",
    "DistributedAdaptiveAvgPool3d",
    "DistributedAdaptiveMaxPool1d",
    "DistributedAdaptiveMaxPool2d",
    "DistributedAdaptiveMaxPool3d",
]

OutputSize = int | tuple[int | None, ...] | None


@common_options
class _DistributedAdaptivePool(AdaptiveLayer):
    """The common part of adaptive max and average pooling: the output's size and the windows."""

    output_size: OutputSize

    def check_options(self) -> None:
        super().check_options()
        self._sizes_of_output = self._sizes(self.output_size)

    def resizings(self) -> list[_core.AdaptiveWindows]:
        return [_core.AdaptiveWindows(size) for size in self._sizes_of_output]

    def _sizes(self, output_size: OutputSize) -> list[int | None]:
        """The size of the output along each spatial dimension; None for the size of the input."""
        name = type(self).__name__
        sizes = list(output_size) if isinstance(output_size, Sequence) else [output_size] * self.dims
        if len(sizes) != self.dims:
            raise RuntimeError(
                f"{name}: output_size={output_size!r} has {len(sizes)} values; the layer has {self.dims} spatial "
                "dimensions"
            )
        free = isinstance(output_size, Sequence) and self.dims > 1  # as in torch.nn
        if any(not (isinstance(size, SupportsIndex) or (size is None and free)) for size in sizes):
            raise TypeError(
                f"{name}: output_size={output_size!r}; it has to be an int, or a tuple of ints, of which some may be "
                "None where there are several"
            )
        extents = [None if size is None else integer(name, size, "output_size") for size in sizes]
        if any(size is not None and size < 0 for size in extents):
            raise RuntimeError(f"{name}: output_size={output_size!r}; it must not be negative")
        return extents


@with_options
class _DistributedAdaptiveMaxPool(_DistributedAdaptivePool):
    return_indices: bool = False
    _functions = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}

    def outputs(self, read: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        pooled, indices = self._largest(read)
        return (pooled, indices) if self.return_indices else pooled

    def without_outputs(self, read: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return (read, read.new_zeros(read.shape, dtype=torch.long)) if self.return_indices else read

    def _largest(self, read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest elements of this worker's windows, and their indices in the whole tensor."""
        windows = self.windows()
        counts = [len(along) for along in windows]
        shape = [*read.shape[: -self.dims], *counts]
        if 0 in shape:
            return self.no_outputs(read, shape), read.new_zeros(shape, dtype=torch.long)
        # The windows side by side, with equal lengths: shorter windows repeat their last element.
        rows = []
        for d, along in enumerate(windows, start=-self.dims):
            longest = max(stop - start for start, stop in along)
            repeated = [min(start + i, stop - 1) for start, stop in along for i in range(longest)]
            rows.append(torch.tensor(repeated, device=read.device))
            read = selected(read, d, rows[-1])
        pooled, indices = self._functions[self.dims](read, counts, return_indices=True)
        positions = torch.unravel_index(indices, read.shape[-self.dims :])
        global_positions = [
            rows[at] + along.reads[0] for rows, at, along in zip(rows, positions, self.axes, strict=True)
        ]
        return pooled, ravel(global_positions, self.extents[-self.dims :])


@with_options
class _DistributedAdaptiveAvgPool(_DistributedAdaptivePool):
    def outputs(self, read: torch.Tensor) -> torch.Tensor:
        return self.average(read)

    def nonempty_dims(self) -> int:
        return self.dims_of_average()


_ADAPTIVE_POOL_DOC = """Applies {dims}-d adaptive {kind} pooling to a partitioned tensor: ``torch.nn.{twin}{dims}d``.

    Output i of m reads the inputs from floor(i n / m) to ceil((i + 1) n / m) of n. A worker receives all inputs of its
    outputs: with fewer outputs than workers, some workers receive many inputs, and others have no work.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``.
        {options}: as in ``torch.nn.{twin}{dims}d``.{indices}
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the sizes allow.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, as P_x, in any blocks. The result of torch.nn is in the same blocks of
        batch and channels, and in balanced or aligned blocks of space.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is invalid.
        TypeError, RuntimeError, NotImplementedError: on all workers, for an output size, input size or dtype that
            torch.nn refuses.
    """
DistributedAdaptiveMaxPool1d, DistributedAdaptiveMaxPool2d, DistributedAdaptiveMaxPool3d = family(
    "DistributedAdaptiveMaxPool{dims}d",
    _ADAPTIVE_POOL_DOC,
    _DistributedAdaptiveMaxPool,
    kind="max",
    twin="AdaptiveMaxPool",
    options="output_size, return_indices",
    indices=" Indices count in the whole tensor.",
)
DistributedAdaptiveAvgPool1d, DistributedAdaptiveAvgPool2d, DistributedAdaptiveAvgPool3d = family(
    "DistributedAdaptiveAvgPool{dims}d",
    _ADAPTIVE_POOL_DOC,
    _DistributedAdaptiveAvgPool,
    kind="average",
    twin="AdaptiveAvgPool",
    options="output_size",
    indices="",
)
