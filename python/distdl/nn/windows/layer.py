"""The common part of pooling and interpolation: each worker computes a block of outputs from their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import torch

from distdl import _core
from distdl.modules.graph import empty_result
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import choice, common_options
from distdl.nn.base.precision import as_under_autocast
from distdl.nn.windows.blocks import OUTPUT_BLOCKS, SPATIAL, Resizing, blocks_of_outputs
from distdl.nn.windows.memory import check_memory
from distdl.nn.windows.reader import BoxReader
from distdl.operators.dispatch import Applied
from distdl.partitions.boxes import Interval, block_intervals

_MOST = 1 << 61  # the geometry multiplies both sizes, in 64 bits


@dataclass(frozen=True)
class AxisWindows:
    """The outputs of a worker along a spatial dimension, and the inputs that it reads.

    Attributes:
        resizing: the inputs of each output.
        n, m: the numbers of inputs and outputs of the whole tensor.
        outputs: (start, stop) of this worker's outputs.
        reads: (start, stop) of their inputs, which may reach beyond the tensor into the padding.
    """

    resizing: Resizing
    n: int
    m: int
    outputs: Interval
    reads: Interval


@common_options
class ResizingLayer(Layer):
    """A layer whose result has other sizes than its input, in balanced blocks or in blocks like those of the input."""

    _: KW_ONLY
    output_blocks: Annotated[str, choice(*OUTPUT_BLOCKS)] = "balanced"


class WindowLayer(ResizingLayer):
    """A layer whose workers each compute a block of the outputs.

    The workers exchange the inputs of their outputs, with padding; then each applies torch's local layer without
    padding. P_x may split batch, channels and spatial dimensions. Its number of dimensions tells tensors (C, *spatial)
    and (N, C, *spatial) apart.

    A derived class has :meth:`resizings` and :meth:`outputs`, and a class with parameters :meth:`without_outputs`, too.
    These call ``parameters_in_use()``, once each.

    Attributes:
        dims: the number of spatial dimensions. A class assigns it without annotation, so that it is no option.
        fill_value: the padding.
        saves_input: whether the layer of torch.nn saves its input for the backward pass.
        accepted: the dtypes of torch.nn's kernels; None if torch.nn checks them.
        extents: the shape of the whole input, after the set-up.
        axes: what this worker reads and computes along each spatial dimension, after the set-up.
    """

    dims: int
    fill_value: ClassVar[float] = 0.0
    saves_input: ClassVar[bool] = True
    accepted: tuple[torch.dtype, ...] | None = None

    def resizings(self) -> Sequence[Resizing]:
        """For each spatial dimension, the inputs of each output: for a kernel, ``_core.Window``."""
        raise NotImplementedError

    def check_options(self) -> None:
        self.check_shape(self.grid.dim - self.dims in (1, 2), SPATIAL.format(self.dims))

    def prepare(self) -> None:
        self._resizings = self.resizings()
        self.extents: list[int] = []
        self.axes: list[AxisWindows] = []
        self._read: BoxReader | None = None  # if a worker reads more than its own block

    def set_up(self) -> None:
        name, sizes = type(self).__name__, self.blocks(self.grid)
        self.extents = [sum(along) for along in sizes]
        first = len(sizes) - len(self._resizings)
        outputs, wanted = [], [block_intervals(along) for along in sizes]
        for d, resizing in enumerate(self._resizings, start=first):
            _check_outputs(name, resizing, self.extents[d], d)
            outputs.append(blocks_of_outputs(resizing, sizes[d], self.output_blocks))
            wanted[d] = [resizing.reads(self.extents[d], block) for block in outputs[-1]]
        self.check_input(self.structure(self.grid)[0][1])
        largest = [max(along) for along in sizes[:first]]
        largest += [max(stop - start for start, stop in along) for along in outputs]
        check_memory(name, self.grid, largest, self.structure(self.grid)[0][1])
        place = self.grid.place[first:] if self.grid.active else ()
        self.axes = [
            AxisWindows(resizing, n, along[-1][1], along[i], read[i])
            for resizing, n, along, read, i in zip(
                self._resizings, self.extents[first:], outputs, wanted[first:], place, strict=False
            )
        ]
        reads_own = wanted == [block_intervals(along) for along in sizes]
        fill = self.fill_value
        self._read = None if reads_own else BoxReader(name, self.grid, self.grid, self.extents, wanted, fill_value=fill)

    def check_input(self, dtype: torch.dtype) -> None:
        """Raise torch.nn's errors for an input of size 0 in channels or space, and for a dtype without kernels.

        The set-up calls it on all ranks. A layer with weights checks ``self.extents[-self.dims - 1]``, the channels.
        """
        if self.accepted is not None and dtype not in self.accepted:
            raise NotImplementedError(f"{type(self).__name__}: not implemented for {dtype}")
        if 0 in self.extents[-self.nonempty_dims() :]:
            raise RuntimeError(
                f"{type(self).__name__}: the input has shape {self.extents}; only the batch may be of size 0"
            )

    def nonempty_dims(self) -> int:
        return self.dims + 1

    def compute(self, input: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x = as_under_autocast(input, self.on_one_element, self.dims + 2)
        read = self._read(x) if self._read is not None else x if self.grid.active else empty_result(x)
        result = self.outputs(read) if self.grid.active else self.without_outputs(read)
        if self.saves_input:
            first = result[0] if isinstance(result, tuple) else result
            _core.check_input_unmodified(type(self).__name__, input, first)
        return result

    def beside_vote(self, args: tuple[object, ...], parameters: Sequence[torch.Tensor]) -> list[Applied]:
        return [(self._read.exchange.core, args[0])] if self._read is not None else []

    def on_one_element(self, x: torch.Tensor) -> torch.Tensor:
        """Apply torch.nn's function to a one-element batch, to learn the result's dtype under autocast."""
        return x

    def outputs(self, read: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """This worker's outputs, from their inputs. It may have none: see :meth:`on_block`."""
        raise NotImplementedError

    def on_block(self, local: Callable[[torch.Tensor], torch.Tensor], read: torch.Tensor) -> torch.Tensor:
        """Apply the local layer to what was read; on a worker without outputs, to an empty batch of a window's size.

        So all workers have the same graph, and second derivatives communicate on all of them or on none.
        """
        space = [along.outputs[1] - along.outputs[0] for along in self.axes]
        if 0 not in (*read.shape[: -self.dims], *space):
            return local(read)
        reads = [along.resizing.reads(along.n, (0, 1)) for along in self.axes]
        window, channels = [stop - start for start, stop in reads], read.shape[-self.dims - 1]
        empty = local(read.flatten()[:0].view(0, channels or 1, *window))
        return empty.reshape(*read.shape[: -self.dims - 1], empty.shape[1] if channels else 0, *space)

    def without_outputs(self, read: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The result of a rank outside of P_x, from the zero-volume tensor that it received.

        With parameters it is ``self.without_part(read)``.
        """
        return read


def _check_outputs(name: str, resizing: Resizing, n: int, d: int) -> None:
    """Raise for a size without outputs. All ranks know the sizes, so all of them raise."""
    fewest = 1 if isinstance(resizing, _core.Window | _core.Interpolation) else 0
    count = resizing.outputs(n) if n > 0 else 0
    if n * count >= _MOST:
        raise RuntimeError(
            f"{name}: the input has {n} elements in dimension {d} and the output would have {count}; their product "
            f"must be less than {_MOST}"
        )
    if n >= 1 and count >= fewest:
        return
    rule = ""
    if isinstance(resizing, _core.Window):
        rule = f". A window reaches over {resizing.reach()} elements, and the padding is {resizing.padding}"
    raise RuntimeError(
        f"{name}: the input has {n} elements in dimension {d} and the output would have {count}; they must have at "
        f"least 1 and {fewest}{rule}"
    )
