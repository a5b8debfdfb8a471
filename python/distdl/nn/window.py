"""What pooling and interpolation have in common: each worker computes a block of outputs from what these read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import Any

from distdl import primitives
from distdl._load import _core
from distdl.nn.boundary import Interval, intervals_of
from distdl.nn.module import Module
from distdl.partition import Partition

_LARGEST = 1 << 31  # what is computed from sizes below it fits into 64 bits


def integer(layer: str, value: Any, name: str, whole: Any = None) -> int:
    """An int from anything that stands for one exactly.

    Raises:
        TypeError: for anything else.
        RuntimeError: if it is too large for sizes to be computed from it.
    """
    whole = value if whole is None else whole
    try:
        number = index(value)
    except TypeError as error:
        raise TypeError(f"{layer}: {name}={whole!r}: {error}") from error
    if abs(number) >= _LARGEST:
        raise RuntimeError(f"{layer}: {name}={whole!r}; it must be less than {_LARGEST}")
    return number


def per_dimension(layer: str, value: Any, dims: int, name: str) -> tuple[int, ...]:
    """One int for each spatial dimension from an int or a sequence; a sequence of one stands for all, as in torch.nn.

    Raises:
        RuntimeError: if a sequence has another length, as in torch.nn.
        TypeError: if something else is given.
    """
    each = value if isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0 else (value,)
    values = tuple(integer(layer, one, name, value) for one in each)
    if len(values) not in (1, dims):
        raise RuntimeError(
            f"{layer}: {name}={value!r} has {len(values)} values; the layer has {dims} spatial dimensions"
        )
    return values * (dims // len(values))


def check_output_blocks(layer: str, output_blocks: str) -> None:
    """Raises ValueError for what is no kind of blocks that a layer's outputs may be in."""
    if output_blocks not in ("balanced", "aligned"):
        raise ValueError(f"{layer}: output_blocks={output_blocks!r}; it must be 'balanced' or 'aligned'")


def blocks_of_outputs(
    window: _core.Window | _core.TransposedWindow, sizes: Sequence[int], output_blocks: str
) -> list[Interval]:
    """The blocks that the outputs come in, of an input in blocks of these sizes."""
    if output_blocks == "aligned":
        return intervals_of(window.aligned_blocks(sizes))
    return [_core.balanced_block(window.outputs(sum(sizes)), len(sizes), i) for i in range(len(sizes))]


class WindowLayer(Module):
    """A layer of which each worker computes its block of the outputs.

    The workers exchange what the outputs of each block read, with the padding filled in; then each applies the local
    PyTorch layer without padding. P_x may partition batch, channels and the spatial dimensions. Reading (C, *spatial)
    or (N, C, *spatial) follows from the dimension of P_x.
    """

    _distdl_sets_up = False  # the exchange agrees on the structure by itself
    dims: int  # spatial dimensions
    P_x: Partition
    output_blocks: str

    def _resize(
        self,
        resizings: Sequence[_core.AdaptiveWindows | _core.Interpolation | _core.Window],
        fill_value: float = 0.0,
    ) -> None:
        """Prepare the exchange for one resizing per spatial dimension. Collective like constructing the layer."""
        self._resizings: list[Any] = list(resizings)
        aligned = self.output_blocks == "aligned"
        self._exchange = primitives.resize_exchange(type(self).__name__, self.P_x, resizings, fill_value, aligned)

    def _check_partition(self) -> None:
        """Refuse a partition that the layer cannot work on. To be called while constructing."""
        if self.P_x._root is None:
            return
        shape = list(self.P_x._shape)
        if len(shape) not in (self.dims + 1, self.dims + 2):
            raise ValueError(
                f"{type(self).__name__}: P_x has shape {shape}; it needs {self.dims} spatial dimensions, preceded by "
                "the channels, or by batch and channels"
            )

    def _distdl_refuse(self, problem: Exception) -> None:
        self._exchange(problem)

    def _input_extents(self) -> list[int]:
        """The global shape of the input, after the exchange. Known on the workers."""
        return [sum(sizes) for sizes in self._exchange.blocks]

    def _check_extents(self, dims: int) -> None:
        """Refuse an input with one of the last dimensions of size 0, as torch.nn does; on all workers alike."""
        extents = self._input_extents()
        if 0 in extents[-dims:]:
            raise RuntimeError(f"{type(self).__name__}: the input has shape {extents}; only the batch may be of size 0")

    def _output_intervals(self) -> list[tuple[int, int]]:
        """(start, stop) of this worker's outputs along each spatial dimension, after the exchange."""
        intervals = []
        index = self.P_x.cartesian_index(self.P_x.rank)
        for sizes, i in zip(self._exchange.outputs[-self.dims :], index[-self.dims :], strict=True):
            start = sum(sizes[: int(i)])
            intervals.append((start, start + sizes[int(i)]))
        return intervals

    def _own(self) -> Iterator[tuple[Any, int, tuple[int, int], tuple[int, int]]]:
        """For each spatial dimension, after the exchange: the resizing, the extent of the input, (start, stop) of this
        worker's outputs and of what it read in the global tensor."""
        extents, outputs = self._input_extents()[-self.dims :], self._output_intervals()
        for resizing, n, own in zip(self._resizings, extents, outputs, strict=True):
            yield resizing, n, own, resizing.reads(n, own)
