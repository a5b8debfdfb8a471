"""Checks of the masks that workers pass to attention."""

from __future__ import annotations

from collections.abc import Sequence

from distdl.nn.base.voted_layer import Described
from distdl.partitions.grid import Grid


def masks_of_workers(layer: str, name: str, described: Sequence[Described], grid: Grid) -> Sequence[Described] | None:
    """The masks of all workers; None if no worker has a mask.

    Raises:
        ValueError: if only some workers have a mask, or the masks differ in dtype or number of dimensions.
    """
    if not described:
        return None
    if len(described) < grid.size:
        raise ValueError(f"{layer}: {len(described)} of {grid.size} workers have {name}; all must have it, or none")
    shape, dtype = described[0]
    for worker, (other, kind) in enumerate(described):
        if len(other) != len(shape) or kind != dtype:
            raise ValueError(
                f"{layer}: worker {worker} of P_x has {name} of shape {other} ({kind}), worker 0 of shape {shape} "
                f"({dtype}); they must have the same number of dimensions and the same dtype"
            )
    return described


def check_columns(layer: str, name: str, shapes: Sequence[Sequence[int]], grid: Grid) -> None:
    """Raise if masks at the same place of the grid are broadcast on some workers only."""
    for d in range(grid.dim):
        seen: dict[int, int] = {}
        for worker, shape in enumerate(shapes):
            place = grid.index(worker)[d]
            if seen.setdefault(place, shape[d]) != shape[d]:
                raise ValueError(
                    f"{layer}: worker {worker} of P_x has {name} of shape {list(shape)}; another worker at place "
                    f"{place} along dimension {d} has extent {seen[place]} there, and they must have the same"
                )
