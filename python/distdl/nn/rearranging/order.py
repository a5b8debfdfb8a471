"""Row-major order: intervals of a flattened tensor around boxes, boxes in intervals, and partitions of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from distdl.partitions.boxes import Interval, box_shape
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition


def leading_dim(extents: Sequence[int]) -> int:
    """The first dimension with more than one element; 0 if there is none."""
    return next((d for d, n in enumerate(extents) if n > 1), 0)


def rows_around(flat: Interval, row: int) -> Interval:
    """(start, stop) of the rows, of so many elements each, around an interval of the flattened rows."""
    start, stop = flat
    return (start // row, -(-stop // row)) if start < stop else (0, 0)


def whole_dims(box: Sequence[Interval]) -> int:
    """The number of last dimensions that an interval around a box has whole: after the first with several indices."""
    singles = next((d for d, (start, stop) in enumerate(box) if stop - start != 1), len(box) - 1)
    return len(box) - 1 - singles


def interval_around(box: Sequence[Interval], extents: Sequence[int]) -> Interval:
    """The smallest interval of whole rows around a box, in the flattened tensor of these extents."""
    if any(start >= stop for start, stop in box):
        return 0, 0
    d = len(box) - 1 - whole_dims(box)
    first = sum(box[i][0] * math.prod(extents[i + 1 :]) for i in range(d + 1))
    row = math.prod(extents[d + 1 :])
    return first, first + (box[d][1] - box[d][0]) * row


def box_in(x: torch.Tensor, dim: int, box: Sequence[Interval], extents: Sequence[int]) -> torch.Tensor:
    """A box of a tensor, from the interval around it along a flattened dimension."""
    shape = box_shape(box)
    if 0 in shape:
        return x.unflatten(dim, shape)
    first_whole = len(box) - whole_dims(box)
    x = x.unflatten(dim, [*shape[:first_whole], *extents[first_whole:]])
    for d in range(first_whole, len(box)):
        x = x.narrow(dim + d, box[d][0], shape[d])
    return x


class Reshaping(Protocol):
    """A layer whose result has another number of dimensions."""

    P_x: Partition
    P_y: Partition | None
    grid: Grid

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The default shape of the result's partition, for a P_x of this shape."""
        ...


def choose_result(layer: Reshaping) -> tuple[Partition | None, Grid]:
    """The partition of a layer's result and its grid: P_y, or the workers of P_x if it is None.

    Raises:
        ValueError: if P_y has another number of dimensions than the result.
    """
    x, P_y = layer.grid, layer.P_y
    if not x.known:
        return P_y, x if P_y is None else P_y.grid
    shape = layer.result_shape(x.shape)
    if P_y is None:
        P_y = Partition.of_grid(x.reshaped(shape), like=layer.P_x)
    if P_y.grid.known and P_y.dim != len(shape):
        raise ValueError(
            f"{type(layer).__name__}: P_x has shape {list(x.shape)} and P_y {list(P_y.grid.shape)}; the result has "
            f"{len(shape)} dimensions, and so must P_y"
        )
    return P_y, P_y.grid
