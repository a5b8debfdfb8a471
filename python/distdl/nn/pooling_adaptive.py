"""Adaptive pooling over blocks: a given number of outputs, whatever the size of the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch
import torch.nn.functional as F

from distdl._load import _core
from distdl.construction import constructing, constructor
from distdl.nn.pooling import ravel
from distdl.nn.resizing import ResizingLayer
from distdl.nn.window import check_output_blocks, integer


class _DistributedAdaptivePool(ResizingLayer):
    """What adaptive max and average pooling have in common: the output's size and the windows."""

    def _set_up(self, P_x: Any, output_size: Any, others: dict[str, Any]) -> None:
        options = {"output_size": output_size, "output_blocks": self.output_blocks, **others}
        with constructing(type(self).__name__, {"P_x": P_x}, options) as (self.P_x,):
            self._check_partition()
            check_output_blocks(type(self).__name__, self.output_blocks)
            sizes = self._sizes(output_size)
        self.output_size = output_size
        self._resize([_core.AdaptiveWindows(size) for size in sizes])

    def _sizes(self, output_size: Any) -> list[int | None]:
        """For each spatial dimension the size of the output, None where it is that of the input."""
        name = type(self).__name__
        given = list(output_size) if isinstance(output_size, Sequence) else [output_size] * self.dims
        if len(given) != self.dims:
            raise RuntimeError(
                f"{name}: output_size={output_size!r} has {len(given)} values; the layer has {self.dims} spatial "
                "dimensions"
            )
        free = isinstance(output_size, Sequence) and self.dims > 1  # as torch.nn has it
        if any(not (isinstance(size, SupportsIndex) or (size is None and free)) for size in given):
            raise TypeError(
                f"{name}: output_size={output_size!r}; it has to be an int, or a tuple of ints, of which some may be "
                "None where there are several"
            )
        sizes = [None if size is None else integer(name, size, "output_size") for size in given]
        if any(size is not None and size < 0 for size in sizes):
            raise RuntimeError(f"{name}: output_size={output_size!r}; it must not be negative")
        return sizes

    def extra_repr(self) -> str:
        """The output's size and the partition."""
        return f"output_size={self.output_size}, output_blocks={self.output_blocks!r}, P_x={self.P_x}"


class _DistributedAdaptiveMaxPool(_DistributedAdaptivePool):
    _functions = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}

    @constructor
    def __init__(
        self,
        P_x: Any,
        output_size: int | tuple[int | None, ...] | None,
        return_indices: bool = False,
        *,
        output_blocks: str = "balanced",
    ) -> None:
        super().__init__()
        self.return_indices, self.output_blocks = return_indices, output_blocks
        self._set_up(P_x, output_size, {"return_indices": return_indices})

    def forward(self, input: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Apply the layer. Collective over the workers of P_x."""
        read = self._exchange(input)
        if not self.P_x.active:
            return (read, read.new_zeros(read.shape, dtype=torch.long)) if self.return_indices else read
        self._check_dtype(read.dtype)
        self._check_extents(self.dims + 1)
        pooled, indices = self._largest(read)
        return (pooled, indices) if self.return_indices else pooled

    def _largest(self, read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest elements of this worker's windows, and where in the global tensor they are."""
        windows = self._adaptive_windows()
        counts = [len(along) for along in windows]
        shape = [*read.shape[: -self.dims], *counts]
        if 0 in shape:
            return read.flatten()[:0].view(shape), read.new_zeros(shape, dtype=torch.long)
        # Windows side by side, all of the same length: the last element of a shorter one is there more than once.
        rows = []
        for d, along in enumerate(windows, start=-self.dims):
            longest = max(stop - start for start, stop in along)
            rows.append(torch.tensor([min(start + i, stop - 1) for start, stop in along for i in range(longest)]))
            read = read.index_select(d, rows[-1])
        pooled, indices = self._functions[self.dims](read, counts, return_indices=True)
        positions = torch.unravel_index(indices, read.shape[-self.dims :])
        found = [along[at] + reads[0] for along, at, (*_, reads) in zip(rows, positions, self._own(), strict=True)]
        return pooled, ravel(found, self._input_extents()[-self.dims :])


class _DistributedAdaptiveAvgPool(_DistributedAdaptivePool):
    @constructor
    def __init__(
        self, P_x: Any, output_size: int | tuple[int | None, ...] | None, *, output_blocks: str = "balanced"
    ) -> None:
        super().__init__()
        self.output_blocks = output_blocks
        self._set_up(P_x, output_size, {})

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer. Collective over the workers of P_x."""
        read = self._exchange(input)
        return self._average(read) if self.P_x.active else read


_DOCUMENTATION = """Applies {dims}-d adaptive {kind} pooling to a partitioned tensor: ``torch.nn.{twin}{dims}d``.

    Output i of m reads the inputs from floor(i n / m) to ceil((i + 1) n / m) of n. A worker receives all that its
    outputs read: with fewer outputs than workers, some receive much, and others have nothing to compute.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``.
        {options}: as in ``torch.nn.{twin}{dims}d``.{indices}
        output_blocks: 'balanced' in space, or 'aligned': cut where the input's are, as far as the sizes let it.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, as P_x has dimensions, in any blocks; out comes what
        ``torch.nn.{twin}{dims}d`` gives, in the same blocks of batch and channels and in balanced or aligned blocks of
        space. Zero volume on all other ranks.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is not as described.
        TypeError, RuntimeError, NotImplementedError: on all workers, where torch.nn raises them for the size of the
            output, the size of the input, and its dtype.

    Constructing is collective over the communicator that P_x comes from, calling over its workers.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.{twin}{dims}d.html.
    """
_MAX = {
    "kind": "max",
    "twin": "AdaptiveMaxPool",
    "options": "output_size, return_indices",
    "indices": " Indices are global: those of the whole tensor.",
}
_AVG = {"kind": "average", "twin": "AdaptiveAvgPool", "options": "output_size", "indices": ""}


class DistributedAdaptiveMaxPool1d(_DistributedAdaptiveMaxPool):
    __doc__ = _DOCUMENTATION.format(dims=1, **_MAX)
    dims = 1


class DistributedAdaptiveMaxPool2d(_DistributedAdaptiveMaxPool):
    __doc__ = _DOCUMENTATION.format(dims=2, **_MAX)
    dims = 2


class DistributedAdaptiveMaxPool3d(_DistributedAdaptiveMaxPool):
    __doc__ = _DOCUMENTATION.format(dims=3, **_MAX)
    dims = 3


class DistributedAdaptiveAvgPool1d(_DistributedAdaptiveAvgPool):
    __doc__ = _DOCUMENTATION.format(dims=1, **_AVG)
    dims = 1


class DistributedAdaptiveAvgPool2d(_DistributedAdaptiveAvgPool):
    __doc__ = _DOCUMENTATION.format(dims=2, **_AVG)
    dims = 2


class DistributedAdaptiveAvgPool3d(_DistributedAdaptiveAvgPool):
    __doc__ = _DOCUMENTATION.format(dims=3, **_AVG)
    dims = 3
