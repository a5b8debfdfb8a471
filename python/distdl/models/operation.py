"""What an operation needs of its tensors, and what comes out: the form in which rules describe operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from distdl.collective.grid import Grid
from distdl.models.placement import Blocks

Run = Callable[..., object]
"""From this worker's parts of the inputs to its parts of the results."""


@dataclass(frozen=True)
class Along:
    """A dimension of an input that is split as a dimension of the result is.

    Attributes:
        dim: of the result.
        scale: how many elements there are for each one of the result.
    """

    dim: int
    scale: Fraction = Fraction(1)


Reads = tuple[Along | None, ...]
"""For each dimension of an input how it is split; None where each worker reads all of it."""


@dataclass(frozen=True)
class Workers:
    """Who computes an operation, and where this rank is among them.

    Attributes:
        grid: of as many dimensions as the result has before anything is summed.
        blocks: those of the first result, of this shape.
        rank: this rank in the communicator of the grid.
    """

    grid: Grid
    blocks: Blocks
    rank: int

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's block of the first result."""
        return self.blocks.local_shape(self.rank)


@dataclass(frozen=True)
class Operation:
    """An operation whose result can be computed in blocks.

    Attributes:
        shape: of the space in which the workers' blocks are, usually that of the result.
        reads: for each tensor of the call what a worker reads for its block; None where only dtype and device count.
        make: constructs, on all workers together, what computes a block. Its argument is None where every worker has
            copies of all inputs; then it computes copies of the result.
        splittable: the dimensions that may be split.
        units: blocks along a dimension are multiples of this.
        places: where the results are, if not in the blocks of the workers.
    """

    shape: tuple[int, ...]
    reads: tuple[Reads | None, ...]
    make: Callable[[Workers | None], Run]
    splittable: frozenset[int]
    units: dict[int, int] = field(default_factory=dict)
    places: Callable[[Workers], Blocks | list[Blocks]] | None = None


class NoRuleError(NotImplementedError):
    """An operation, or a use of it, for which there is no rule. The message says why."""
