"""The masks of attention, as the workers pass them."""

from __future__ import annotations

from collections.abc import Sequence

from distdl.collective.grid import Grid
from distdl.nn.layer import Described


def of_all_workers(layer: str, name: str, described: Sequence[Described], grid: Grid) -> Sequence[Described] | None:
    """The masks of all workers; None where nobody has one.

    Raises:
        ValueError: if some workers have a mask and others have none, or of another dtype or number of dimensions.
    """
    if not described:
        return None
    if len(described) < grid.size:
        raise ValueError(f"{layer}: {len(described)} of {grid.size} workers have {name}; all of them or none must")
    shape, dtype = described[0]
    for worker, (other, kind) in enumerate(described):
        if len(other) != len(shape) or kind != dtype:
            raise ValueError(
                f"{layer}: worker {worker} of P_x has {name} of shape {other} ({kind}), worker 0 of shape {shape} "
                f"({dtype}); they must have the same number of dimensions and the same dtype"
            )
    return described


def check_columns(layer: str, name: str, shapes: Sequence[Sequence[int]], grid: Grid) -> None:
    """Refuse masks that are broadcast on some of the workers, and are not on others, in the same place of the grid."""
    for d in range(grid.dim):
        seen: dict[int, int] = {}
        for worker, shape in enumerate(shapes):
            at = grid.index(worker)[d]
            if seen.setdefault(at, shape[d]) != shape[d]:
                raise ValueError(
                    f"{layer}: worker {worker} of P_x has {name} of shape {list(shape)}; another worker at place {at} "
                    f"along dimension {d} has extent {seen[at]} there, and they must have the same"
                )
