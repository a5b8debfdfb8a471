"""Grids that the user requests for modules of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch

from distdl.partitions.construction import grid_of
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition


def requested_grids(plan: object, model: torch.nn.Module, workers: Grid) -> dict[str, Grid]:
    """The grids of the option `plan`, by patterns of the names of modules.

    Raises:
        TypeError, ValueError: if it is no dict of partitions of these workers by names of modules.
    """
    if not isinstance(plan, Mapping | None):
        raise TypeError(f"distribute: plan is a {type(plan).__name__}; it has to be a dict of partitions")
    names = [name for name, _ in model.named_modules()]
    grids = {}
    for pattern, partition in (plan or {}).items():
        if not any(fnmatchcase(name, str(pattern)) for name in names):
            raise ValueError(
                f"distribute: plan[{pattern!r}]: no module of the model has such a name; see named_modules()"
            )
        grids[str(pattern)] = requested_grid(f"plan[{pattern!r}]", partition, workers)
    return grids


def is_grid(value: object) -> bool:
    """Whether a value of an option says a grid: a partition, or numbers of workers."""
    is_numbers = isinstance(value, list | tuple) and bool(value) and all(type(n) is int for n in value)
    return is_numbers or isinstance(value, Partition | Grid)


def requested_grid(name: str, value: object, workers: Grid) -> Grid:
    """The grid of a partition, or of the first workers for numbers of workers along each dimension.

    Raises:
        TypeError, ValueError: if it is neither, or has other ranks than these workers.
    """
    if not is_grid(value):
        raise TypeError(
            f"distribute: {name}={value!r}; it has to be a distdl.Partition, or the numbers of workers along each "
            "dimension"
        )
    if isinstance(value, list | tuple):
        count = math.prod(value)
        if workers.known and not (min(value) > 0 and count <= workers.size):
            raise ValueError(f"distribute: {name}={list(value)}; P_x has {workers.size} workers")
        return workers.related(workers.ranks[:count], value)
    grid = grid_of(value)
    if grid.known and workers.known and not set(grid.ranks) <= set(workers.ranks):
        raise ValueError(
            f"distribute: {name} has ranks {list(grid.ranks)}, and P_x {list(workers.ranks)}; the workers of a plan "
            "are workers of P_x"
        )
    return grid


def request_for(path: str, requested: dict[str, Grid]) -> tuple[str, Grid | None]:
    """The last pattern, and its grid, for the innermost module around a call that any pattern names."""
    paths = [*(path.rsplit(".", i)[0] for i in range(path.count(".") + 1)), ""]
    patterns = [*reversed(requested.items())]
    matches = ((pattern, grid) for inner in paths for pattern, grid in patterns if fnmatchcase(inner, pattern))
    return next(matches, ("", None))
