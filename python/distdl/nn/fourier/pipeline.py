"""The transforms and exchanges of tensors of one structure, in parts of which one travels while another is computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl import operators
from distdl.collective.grid import Grid
from distdl.nn.fourier.kinds import Transform, without_elements
from distdl.nn.fourier.pencils import Stage, Task
from distdl.nn.fourier.slices import joined
from distdl.nn.windows.blocks import Interval, intervals_of
from distdl.operators.dispatch import CompletedCall, Operator, Started
from distdl.parameters.layout import cut


class Pipeline:
    """The way of a tensor through the stages of its transform.

    Args:
        name: of the function, for messages.
        transform, task, stages: what to transform, and where.
        grids: the workers of the stages.
        sizes: of the input's blocks, by dimension.
        dtype: of the input.
        parts: in how many parts the tensor travels, if some dimension can be cut into parts.

    Ranks that have agreed on all arguments construct it together. Calling is collective over the workers of all grids.
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
        self._dtypes = [dtype]  # before the first stage, and behind each of them
        for dims in self._dims:
            ends = transform.last is None or transform.last in dims
            after = transform.dtype if ends else transform.complex_dtype
            self._dtypes.append(after if dims else self._dtypes[-1])
        self._along = _dim_of_parts(task.dims, grids, sizes) if parts > 1 and len(grids) > 1 else None
        self._parts = 1 if self._along is None else parts
        wanted = wanted_intervals(task, stages, grids, sizes)
        self._exchanges: list[list[Operator]] = [
            [
                operators.interval_exchange(name, source, target, self._of_part(part, intervals, sizes))
                for part in range(self._parts)
            ]
            for source, target, intervals in zip(grids, grids[1:], wanted, strict=False)
        ]

    def _of_part(
        self, part: int, intervals: Sequence[list[Interval]], sizes: Sequence[Sequence[int]]
    ) -> list[list[Interval]]:
        """The intervals of one part: its share of each block along the dimension that is cut into parts."""
        found = list(intervals)
        if self._along is not None:
            shares = [cut(n, self._parts)[part] for n in sizes[self._along]]
            found[self._along] = intervals_of([stop - start for start, stop in shares])
        return found

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's block of the result."""
        arrived: Sequence[Started] = [CompletedCall("input", part) for part in self._parts_of(x)]
        for i, exchanges in enumerate(self._exchanges):
            # While a part is transformed, those before it travel to the next stage and those behind it to this one.
            arrived = [
                self._send(exchange, self._transformed(i, part.wait()))
                for exchange, part in zip(exchanges, arrived, strict=True)
            ]
        results = [self._transformed(len(self._exchanges), part.wait()) for part in arrived]
        return joined(results, self._along if self._along is not None and self._grids[-1].active else 0)

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

    They are balanced blocks, or those of the input where a dimension is as long and among as many workers.
    """
    left, found = frozenset(task.dims), []
    for stage, grid in zip(stages, grids[1:], strict=False):
        left -= set(stage.dims)
        extents = task.extents(left)
        found.append(
            [
                intervals_of(own) if len(own) == p and sum(own) == n else cut(n, p)
                for own, n, p in zip(sizes, extents, grid.shape, strict=True)
            ]
        )
    return found


def _dim_of_parts(dims: Sequence[int], grids: Sequence[Grid], sizes: Sequence[Sequence[int]]) -> int | None:
    """The longest of the dimensions that are neither transformed nor exchanged; None if there is none."""
    free = [d for d in range(len(sizes)) if d not in dims and len({grid.shape[d] for grid in grids}) == 1]
    return max(free, key=lambda d: sum(sizes[d]), default=None)
