"""The log-sum-exp of all blocks along an axis, for softmax and cross entropy."""

from __future__ import annotations

from distdl import _core, operators
from distdl.partitions.grid import Grid


def along_axis(grid: Grid, axis: int) -> _core.AlongAxis:
    """Softmax and log-sum-exp over the workers along an axis of a known grid, and over this dimension of tensors.

    Collective over the grid's constructing ranks.
    """
    gather, total = operators.all_gather(grid, [axis]), operators.all_sum_reduce(grid, [axis])
    return _core.AlongAxis(axis, gather.core, total.core)
