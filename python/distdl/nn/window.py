"""What pooling layers have in common: windows that slide over blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

import torch

from distdl import primitives
from distdl._load import _core
from distdl.nn.module import Module
from distdl.partition import Partition


def per_dimension(value: Any, dims: int, name: str) -> tuple[int, ...]:
    """One int for each spatial dimension from an int or a sequence.

    Raises:
        ValueError: if a sequence has another length.
        TypeError: if something else is given.
    """
    values = tuple(map(index, value)) if isinstance(value, Iterable) else (index(value),) * dims
    if len(values) != dims:
        raise ValueError(f"{name}={value!r} has {len(values)} values; the layer has {dims} spatial dimensions")
    return values


class WindowLayer(Module):
    """A layer of which each worker computes its balanced block of the outputs.

    The workers exchange what the windows of each block read, with the padding filled in; then each applies the local
    PyTorch layer without padding. P_x may partition the spatial dimensions and the batch, and where each channel is
    computed by itself the channels too. Reading (C, *spatial) or (N, C, *spatial) follows from the dimension of P_x.
    """

    _distdl_sets_up = False  # the exchange agrees on the structure by itself
    dims: int  # spatial dimensions
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]

    def _slide(
        self, P_x: Partition, windows: Sequence[_core.Window], periodic: bool = False, fill_value: float = 0.0
    ) -> None:
        """Prepare the exchange for one window per spatial dimension. Collective like the construction of the layer."""
        self._windows = list(windows)
        self._exchange = primitives.window_exchange(type(self).__name__, P_x, windows, periodic, fill_value)

    def _check_partition(self, P_x: Partition, split_channels: bool) -> None:
        """Refuse a partition that the layer cannot work on. To be called while constructing."""
        if P_x._root is None:
            return
        shape = list(P_x._shape)
        if len(shape) not in (self.dims + 1, self.dims + 2):
            raise ValueError(
                f"{type(self).__name__}: P_x has shape {shape}; it needs {self.dims} spatial dimensions, preceded by "
                "the channels, or by batch and channels"
            )
        if not split_channels and shape[-self.dims - 1] != 1:
            raise ValueError(
                f"{type(self).__name__}: P_x has shape {shape}; its channel dimension must be 1, only space and batch "
                "may be partitioned"
            )

    def _input_extents(self) -> list[int]:
        """The global shape of the input, after the exchange. Known on the workers."""
        return [sum(sizes) for sizes in self._exchange.blocks]

    def _check_extents(self, dims: int) -> None:
        """Refuse an input with one of the last dimensions of size 0, as torch.nn does; on all workers alike."""
        extents = self._input_extents()
        if 0 in extents[-dims:]:
            raise RuntimeError(f"{type(self).__name__}: the input has shape {extents}; only the batch may be of size 0")

    def _output_intervals(self, P_x: Partition) -> list[tuple[int, int]]:
        """(start, stop) of this worker's outputs along each spatial dimension, after the exchange."""
        intervals = []
        for sizes, i in zip(
            self._exchange.outputs[-self.dims :], P_x.cartesian_index(P_x.rank)[-self.dims :], strict=True
        ):
            start = sum(sizes[: int(i)])
            intervals.append((start, start + sizes[int(i)]))
        return intervals

    def _apply_locally(
        self,
        P_x: Partition,
        compute: Callable[[torch.Tensor], torch.Tensor],
        read: torch.Tensor,
    ) -> torch.Tensor:
        """The local layer; where it has no outputs to compute, the local layer of an empty batch.

        So the graph is the same on all workers, and second derivatives communicate on all of them or on none.
        """
        shape = [*read.shape[: -self.dims], *(stop - start for start, stop in self._output_intervals(P_x))]
        if 0 not in shape:
            return compute(read)
        reaches = [d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        return compute(read.flatten()[:0].view(0, read.shape[-self.dims - 1] or 1, *reaches)).reshape(shape)
