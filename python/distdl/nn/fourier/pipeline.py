"""Transforms and exchanges of tensors of one structure, in parts: a part travels during other transforms."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl import operators
from distdl.nn.fourier.kinds import Transform, without_elements
from distdl.nn.fourier.pencils import Stage, Task
from distdl.nn.kernels.fourier_slices import concatenated
from distdl.operators.dispatch import CompletedCall, Operator, Started
from distdl.partitions.boxes import Interval, block_intervals, box_shape, cut, same_blocks
from distdl.partitions.grid import Grid


class Pipeline:
    """The stages of a tensor's transform.

    Args:
        sizes: of the input's blocks, by dimension.
        parts: the number of parts, if a dimension can be cut into parts.

    Constructing is collective, after a vote on all arguments. Calling is collective over the workers of all grids.
    """

    def __init__(
        self,
        name: str,
        transform: Transform,
        task: Task,
        stages: Sequence[Stage],
        grids: Sequence[Grid],
        sizes: Sequence[Sequence[int]],
        dtype: torch.dtype,
        parts: int,
    ) -> None:
        self._transform, self._grids = transform, grids
        self._dims = [stage.dims for stage in stages]
        self._dtypes = [dtype]  # before the first stage, and after each stage
        for dims in self._dims:
            ends = transform.last is None or transform.last in dims
            after = transform.dtype if ends else transform.complex_dtype
            self._dtypes.append(after if dims else self._dtypes[-1])
        self._along = _dim_of_parts(task.dims, grids, sizes) if parts > 1 and len(grids) > 1 else None
        self._parts = 1 if self._along is None else parts
        wanted = wanted_intervals(task, stages, grids, sizes)
        self._exchanges: list[list[Operator]] = [
            [
                operators.interval_exchange(name, source, target, self._part_intervals(part, intervals, sizes))
                for part in range(self._parts)
            ]
            for source, target, intervals in zip(grids, grids[1:], wanted, strict=False)
        ]

    def _part_intervals(
        self, part: int, intervals: Sequence[list[Interval]], sizes: Sequence[Sequence[int]]
    ) -> list[list[Interval]]:
        """The intervals of a part: its share of each block along the dimension of the parts."""
        result = list(intervals)
        if self._along is not None:
            shares = [cut(n, self._parts)[part] for n in sizes[self._along]]
            result[self._along] = block_intervals(box_shape(shares))
        return result

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        arrived: Sequence[Started] = [CompletedCall("input", part) for part in self._parts_of(x)]
        for i, exchanges in enumerate(self._exchanges):
            # During the transform of a part, earlier parts travel to the next stage, and later parts to this stage.
            arrived = [
                self._send(exchange, self._transformed(i, part.wait()))
                for exchange, part in zip(exchanges, arrived, strict=True)
            ]
        results = [self._transformed(len(self._exchanges), part.wait()) for part in arrived]
        return concatenated(results, self._along if self._along is not None and self._grids[-1].active else 0)

    def _parts_of(self, x: torch.Tensor) -> list[torch.Tensor]:
        if self._along is None:
            return [x]
        if not self._grids[0].active:
            return [x] * self._parts
        return [x.narrow(self._along, a, b - a) for a, b in cut(x.shape[self._along], self._parts)]

    def _transformed(self, stage: int, x: torch.Tensor) -> torch.Tensor:
        if not self._grids[stage].active:
            return without_elements(x, (0,), self._dtypes[stage + 1])
        return self._transform(x, self._dims[stage], contiguous=stage < len(self._exchanges))

    def _send(self, exchange: Operator, x: torch.Tensor) -> Started:
        return exchange.start(x) if self._parts > 1 else CompletedCall(exchange.name, exchange(x))


def wanted_intervals(
    task: Task, stages: Sequence[Stage], grids: Sequence[Grid], sizes: Sequence[Sequence[int]]
) -> list[list[list[Interval]]]:
    """The intervals that each exchange brings to the places of the next grid: by exchange, by dimension, by place.

    They are the input's blocks in dimensions of the same extent and number of workers, otherwise balanced blocks.
    """
    remaining, exchanges = frozenset(task.dims), []
    for stage, grid in zip(stages, grids[1:], strict=False):
        remaining -= set(stage.dims)
        extents = task.extents(remaining)
        exchanges.append([same_blocks(blocks, p, n) for blocks, n, p in zip(sizes, extents, grid.shape, strict=True)])
    return exchanges


def _dim_of_parts(dims: Sequence[int], grids: Sequence[Grid], sizes: Sequence[Sequence[int]]) -> int | None:
    """The longest dimension that is neither transformed nor exchanged; None if there is none."""
    free = [d for d in range(len(sizes)) if d not in dims and len({grid.shape[d] for grid in grids}) == 1]
    return max(free, key=lambda d: sum(sizes[d]), default=None)
