"""Grids that the user requests for modules of a model."""

from __future__ import annotations

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
        if not isinstance(partition, Partition | Grid):
            raise TypeError(f"distribute: plan[{pattern!r}]={partition!r}; it has to be a distdl.Partition")
        if not any(fnmatchcase(name, str(pattern)) for name in names):
            raise ValueError(
                f"distribute: plan[{pattern!r}]: no module of the model has such a name; see named_modules()"
            )
        grid = grid_of(partition)
        if grid.known and workers.known and not set(grid.ranks) <= set(workers.ranks):
            raise ValueError(
                f"distribute: plan[{pattern!r}] has ranks {list(grid.ranks)}, and P_x {list(workers.ranks)}; the "
                "workers of a plan are workers of P_x"
            )
        grids[str(pattern)] = grid
    return grids


def request_for(path: str, requested: dict[str, Grid]) -> tuple[str, Grid | None]:
    """The last pattern, and its grid, for the innermost module around a call that any pattern names."""
    paths = [*(path.rsplit(".", i)[0] for i in range(path.count(".") + 1)), ""]
    patterns = [*reversed(requested.items())]
    matches = ((pattern, grid) for inner in paths for pattern, grid in patterns if fnmatchcase(inner, pattern))
    return next(matches, ("", None))
