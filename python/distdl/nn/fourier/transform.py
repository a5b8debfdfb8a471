"""Fourier transforms of tensors in blocks; any dimension may be split."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import ClassVar

import torch

from distdl import _core
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Count, FurtherPartition, option, with_options
from distdl.nn.fourier.kinds import FUNCTIONS, Dims, TransformSizes, resolve_transform
from distdl.nn.fourier.pencils import Stage, Task, largest_blocks, plan
from distdl.nn.fourier.pipeline import Pipeline
from distdl.nn.windows.blocks import naming_layer
from distdl.nn.windows.memory import check_memory
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition

__all__ = ["TRANSFORMS", "FourierTransform"]

_SAVE_REAL_INPUT = ("fft", "ifft", "rfft", "rfft2", "rfftn", "ihfft")
"""The functions of torch whose backward pass raises if their real input was written after the call."""


@with_options
class FourierTransform(Layer):
    """A function of torch.fft of a tensor in blocks. Derived classes name it.

    A dimension is transformed where a worker has it whole. The workers form a sequence of grids in which each
    transformed dimension is whole once (``pencils.py``), and exchange the elements in between.

    Args:
        P_x: the partition of the input.
        size, dim, norm: as in torch.fft; ``size`` is ``n``, or ``s`` of transforms in several dimensions.
        parts: the number of parts, along a dimension that is neither transformed nor exchanged, if any. A part travels
            during the transform of the next part.
        pencil: whether the result stays in the grid of the last transform.
        P_out: the partition of the result; by default the input's.

    Attributes:
        P_result: the partition of the last call's result.
    """

    size: TransformSizes = None
    dim: Dims = -1
    norm: str | None = None
    parts: Count = 1
    _: KW_ONLY
    pencil: bool = False
    P_out: FurtherPartition = option(default=None)
    function: ClassVar[str]

    def check_options(self) -> None:
        name = type(self).__name__
        if self.P_out is not None and self.grid.known and self.P_out.grid.known and self.P_out.dim != self.grid.dim:
            raise ValueError(
                f"{name}: P_x has shape {list(self.grid.shape)} and the partition of the result "
                f"{list(self.P_out.grid.shape)}; they must have as many dimensions"
            )
        if self.grid.known:
            # With any extents torch raises the same errors for the arguments.
            resolve_transform(self.function, [2] * self.grid.dim, torch.float32, self.size, self.dim, self.norm)

    def prepare(self) -> None:
        self.P_result = self.P_x if self.P_out is None else self.P_out
        self._pencils = {self.grid.shape: self.P_x}
        self._pipeline: Pipeline | None = None

    def set_up(self) -> None:
        name, sizes = type(self).__name__, self.blocks(self.grid)
        extents, dtype = [sum(along) for along in sizes], self.structure(self.grid)[0][1]
        with naming_layer(name):
            transform = resolve_transform(self.function, extents, dtype, self.size, self.dim, self.norm)
        reads = list(extents)
        for d, read in zip(transform.dims, transform.reads, strict=True):
            reads[d] = min(read, extents[d])
        task = Task(transform.dims, transform.first, transform.last, tuple(reads), transform.shape)
        target = None if self.pencil else self.grid if self.P_out is None else self.P_out.grid
        same = target is None or target.ranks == self.grid.ranks
        stages = plan(task, self.grid.shape, None if target is None else target.shape, same)
        grids = [self.grid, *(self._grid_of(stage) for stage in stages[1:])]
        for largest in largest_blocks(task, stages):
            check_memory(name, self.all_ranks, largest, transform.complex_dtype)
        if target is not None:
            grids[-1] = target
        else:
            self.P_result = self._pencil_of(grids[-1])
        self._pipeline = Pipeline(name, transform, task, stages, grids, sizes, dtype, self.parts)
        self._dtype = transform.dtype

    def _grid_of(self, stage: Stage) -> Grid:
        return self.grid.related(self.grid.ranks[: math.prod(stage.shape)], stage.shape)

    def _pencil_of(self, grid: Grid) -> Partition:
        """The partition of this grid, always the same object, so that objects made for it are found again."""
        return self._pencils.setdefault(grid.shape, Partition.of_grid(grid, like=self.P_x))

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if self._pipeline is None:
            return input.clone()
        result = self._pipeline(input)
        if self.function in _SAVE_REAL_INPUT and not input.is_complex():
            _core.check_input_unmodified(type(self).__name__, input, result)
        return result if result.dtype == self._dtype else result.to(self._dtype)  # if no dimension is transformed


def _transform_layer(function: str) -> type[FourierTransform]:
    return type(function, (FourierTransform,), {"function": function, "__doc__": FourierTransform.__doc__})


TRANSFORMS = {function: _transform_layer(function) for function in FUNCTIONS}
"""The layers of the functions of torch.fft."""
