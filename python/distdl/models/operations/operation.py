"""The form in which rules describe an operation: the parts of its tensors that it reads, and its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from distdl.models.capture.replay import Run
from distdl.models.operations.placement import Blocks, balanced_sizes
from distdl.parameters.layout import Interval
from distdl.partitions.grid import Grid

Draw = Callable[[int | None, Sequence[Interval], torch.device], torch.Tensor]
"""Random numbers of a block, given by its intervals, on a device.

They follow from a key and from each element's place in the whole. Without a key they are those of torch in one process:
every rank draws those of the whole, so that the generators of all ranks stay in step.
"""


@dataclass(frozen=True)
class Sharded:
    """A dimension of an input that is split as a dimension of the result is.

    Attributes:
        dim: of the result.
        scale: how many elements there are for each one of the result.
        span: the (start, stop) that a worker reads for the (start, stop) of its block, if these are not scaled.
        periodic: whether what is beyond the end of the input is its beginning.
    """

    dim: int
    scale: Fraction = Fraction(1)
    span: Callable[[int, int], Interval] | None = None
    periodic: bool = False

    def interval(self, start: int, stop: int) -> Interval:
        """The interval that a worker reads for its block."""
        if self.span is not None:
            return self.span(start, stop) if start < stop else (0, 0)
        first, last = start * self.scale, stop * self.scale
        assert first.denominator == last.denominator == 1
        return first.numerator, last.numerator


@dataclass(frozen=True)
class Slice:
    """A dimension of an input of which each worker reads the same part."""

    start: int
    stop: int


InputSpec = tuple[Sharded | Slice | None, ...]
"""For each dimension of an input how it is split, or what everybody reads of it; None for all of it."""


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
    def block(self) -> tuple[Interval, ...]:
        """This rank's block of the first result; without elements for a rank that is no worker."""
        return self.blocks.block(self.rank) or ((0, 0),) * len(self.blocks.block_sizes)

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
        if_requested: those that a plan may split instead, with the batch or without.
        units: blocks along a dimension are multiples of this.
        places: where the results are, if not in the blocks of the workers. An operation without them and without a
            layer is computed by each worker by itself, and by none whose blocks have no elements.
        draw: random numbers for the block of a worker; what computes it takes them in front of the inputs.
    """

    shape: tuple[int, ...]
    input_specs: tuple[InputSpec | None, ...]
    make: Callable[[Workers | None], Run]
    splittable: frozenset[int]
    units: dict[int, int] = field(default_factory=dict)
    places: Callable[[Workers], Blocks | list[Blocks]] | None = None
    draw: Draw | None = None
    if_requested: frozenset[int] = frozenset()

    def blocks(self, ranks: Sequence[int], splits: Sequence[int]) -> Blocks:
        """Blocks of workers, as many along each dimension, as balanced as the units allow."""
        sizes = zip(self.shape, splits, strict=True)
        return Blocks(tuple(ranks), tuple(balanced_sizes(n, p, self.units.get(d, 1)) for d, (n, p) in enumerate(sizes)))


class NoRuleError(NotImplementedError):
    """An operation, or a use of it, for which there is no rule. The message says why."""


class RandomError(NoRuleError):
    """No rule for random numbers drawn in another way: a worker alone would leave the others' generators behind."""
