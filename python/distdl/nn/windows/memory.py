"""Blocks of results that are too large for a worker: refused before allocation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from distdl.partitions.comparison import compare
from distdl.partitions.grid import Grid

_LARGE_BLOCK = 1 << 28  # elements of a block from which workers compare whether they have the memory


def check_memory(name: str, grid: Grid, largest: Sequence[int], dtype: torch.dtype) -> None:
    """Raise on all workers of a grid if any of them cannot allocate a block of the result. Collective.

    Args:
        largest: the largest block along each dimension.
        dtype: of the result.

    Raises:
        RuntimeError: on all workers.
    """
    if math.prod(largest) < _LARGE_BLOCK:
        return
    error = None
    try:
        torch.empty(largest, dtype=dtype, device="cpu")
    except (RuntimeError, TypeError) as raised:
        error = RuntimeError(f"{name}: a block of the result has the shape {list(largest)}: {raised}")
    compare(name, "set-up", grid.line(grid.ranks), error, {}, {})
