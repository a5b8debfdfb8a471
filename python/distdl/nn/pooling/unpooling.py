"""Partial inverses of max pooling over blocks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import ClassVar, cast

import torch
import torch.nn.functional as F

from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import Sizes, SizesOrNone, option, with_options
from distdl.nn.base.precision import as_under_autocast
from distdl.nn.base.value_checks import CheckedLayer
from distdl.nn.windows.blocks import SPATIAL, naming_layer
from distdl.nn.windows.reader import BoxReader
from distdl.nn.windows.sums import ravel
from distdl.partitions.boxes import Interval, block_intervals, cut

__all__ = ["DistributedMaxUnpool1d", "DistributedMaxUnpool2d", "DistributedMaxUnpool3d"]


@with_options
class _DistributedMaxUnpool(CheckedLayer):
    """The common part of the layers.

    An index may point anywhere: each worker receives all elements of its channels, and keeps the elements of its block.
    """

    _functions = {1: F.max_unpool1d, 2: F.max_unpool2d, 3: F.max_unpool3d}
    tensors: ClassVar[tuple[str, ...]] = ("input", "indices")
    dims: ClassVar[int]  # spatial dimensions
    kernel_size: Sizes
    stride: SizesOrNone = option(default=None)
    padding: Sizes = option(default=0)

    def check_options(self) -> None:
        self.check_shape(self.grid.dim - self.dims in (1, 2), SPATIAL.format(self.dims))
        self.stride = self.kernel_size if self.stride is None else self.stride

    def prepare(self) -> None:
        self._block: list[Interval] = []  # (start, stop) of this worker's block of the result, in space
        self._extents: Sequence[int] = ()  # of the result, in space
        self._reads: list[BoxReader] = []

    def set_up(self) -> None:
        name, sizes = type(self).__name__, self.blocks(self.grid)
        self._check_structure()
        extents, first = [sum(along) for along in sizes], len(sizes) - self.dims
        output_size = self._output_size()
        with naming_layer(name):
            x, at = (torch.empty(extents, device="meta", dtype=dtype) for dtype in (None, torch.long))
            whole = self._functions[self.dims](x, at, self.kernel_size, self.stride, self.padding, output_size)
        self._extents, workers = whole.shape[first:], self.grid.shape[first:]
        if self.grid.active:
            blocks = [cut(n, p) for n, p in zip(self._extents, workers, strict=True)]
            self._block = [along[i] for along, i in zip(blocks, self.grid.place[first:], strict=True)]
        reads = [block_intervals(along) for along in sizes[:first]]
        reads += [[(0, n)] * p for n, p in zip(extents[first:], workers, strict=True)]
        split = any(p > 1 for p in workers)
        self._reads = [BoxReader(name, self.grid, self.grid, extents, reads) for _ in self.tensors if split]

    def _output_size(self) -> list[int] | None:
        size = cast(Sequence[int] | None, self.others[0] if self.others else None)
        try:
            return None if size is None else [index(n) for n in size]
        except TypeError as error:
            raise TypeError(
                f"{type(self).__name__}: output_size={size!r}; it has to be a sequence of ints, or None"
            ) from error

    def _check_structure(self) -> None:
        name, inputs, indices = type(self).__name__, self.structure(self.grid), self.structure(self.grid, tensor=1)
        for worker, ((shape, dtype), (index_shape, index_dtype)) in enumerate(zip(inputs, indices, strict=True)):
            if shape != index_shape or index_dtype != torch.long:
                raise RuntimeError(
                    f"{name}: worker {worker} of P_x has an input of shape {shape} and indices of shape {index_shape} "
                    f"({index_dtype}); the indices must have the shape of the input and be of torch.int64"
                )
            with naming_layer(name):  # torch checks dtypes only when it computes
                element = torch.zeros([1] * (self.dims + 1), dtype=dtype, device="cpu")
                self._functions[self.dims](element, torch.zeros_like(element, dtype=torch.long), 1)

    def _on_one_element(self, x: torch.Tensor) -> torch.Tensor:
        return self._functions[self.dims](x, x.long(), 1)

    def local_error(self, inputs: Sequence[object]) -> str:
        indices = inputs[1] if len(inputs) > 1 else None
        if not isinstance(indices, torch.Tensor) or indices.dtype != torch.long or indices.numel() == 0:
            return ""
        low, high, count = int(indices.min()), int(indices.max()), torch.Size(self._extents).numel()
        if low >= 0 and high < count:
            return ""
        return f"has an invalid max index {low if low < 0 else high}: the result has {count} elements in space"

    def compute(
        self, input: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Put this rank's block of the input to its places on all workers."""
        input = as_under_autocast(input, self._on_one_element, self.dims + 2)
        if self._reads:
            input, indices = (read(x) for read, x in zip(self._reads, (input, indices), strict=True))
        if not self.grid.active:
            return input.clone()
        sizes = [stop - start for start, stop in self._block]
        count = torch.Size(sizes).numel()
        positions = torch.unravel_index(indices.flatten(-self.dims), self._extents)
        inside = torch.ones_like(positions[0], dtype=torch.bool)
        for at, (start, stop) in zip(positions, self._block, strict=True):
            inside = inside & (at >= start) & (at < stop)
        place = ravel([at - start for at, (start, _) in zip(positions, self._block, strict=True)], sizes)
        values = input.flatten(-self.dims)
        # A further element receives the values of other blocks.
        result = values.new_zeros([*values.shape[:-1], count + 1]).scatter(-1, place.where(inside, count), values)
        return result.narrow(-1, 0, count).reshape([*values.shape[:-1], *sizes])


_UNPOOL_DOC = """Puts maxima back to their places: ``torch.nn.MaxUnpool{dims}d`` in blocks.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``.
        kernel_size, stride, padding: as in ``torch.nn.MaxUnpool{dims}d``.

    The layer is called with the input, the indices from :class:`DistributedMaxPool{dims}d` with
    ``return_indices=True``, and optionally the ``output_size`` of the whole result.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, as P_x, in any blocks, and indices of the same shape. The result of
        torch.nn is in the same blocks of batch and channels, and in balanced blocks of space.

    Raises:
        ValueError: on all ranks, if the partition is not as described, or torch.nn refuses output_size.
        TypeError, RuntimeError, NotImplementedError: on all workers, for options, shapes, dtypes or indices that
            torch.nn refuses.

    Of several elements with the same index the last remains, and all of them get its gradient, as in torch.nn on one
    thread. If space is split, each worker receives all elements of its channels.
    """
DistributedMaxUnpool1d, DistributedMaxUnpool2d, DistributedMaxUnpool3d = family(
    "DistributedMaxUnpool{dims}d", _UNPOOL_DOC, _DistributedMaxUnpool
)
