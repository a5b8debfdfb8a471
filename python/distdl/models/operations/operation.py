"""The form in which rules describe an operation: the regions of inputs that workers read, and its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from distdl.models.capture.recording import Run
from distdl.models.operations.placement import Blocks, balanced_sizes
from distdl.partitions.boxes import Interval
from distdl.partitions.grid import Grid

Draw = Callable[[int | None, Sequence[Interval], torch.device], torch.Tensor]
"""Random numbers of a block, by its intervals, on a device.

A key and each element's index in the whole tensor determine them. Without a key they are torch's numbers in one
process: every rank draws the whole tensor, so that the generators of all ranks stay in step.
"""


@dataclass(frozen=True)
class Sharded:
    """A dimension of an input that is sharded as a dimension of the result.

    Attributes:
        dim: the dimension of the result.
        scale: the number of elements of the input for each element of the result.
        span: the (start, stop) that a worker reads for the (start, stop) of its block, if these are not scaled.
        periodic: whether the end of the input is followed by its beginning.
    """

    dim: int
    scale: Fraction = Fraction(1)
    span: Callable[[int, int], Interval] | None = None
    periodic: bool = False

    def interval(self, start: int, stop: int) -> Interval:
        """The interval that a worker reads for its block."""
        if self.span is not None:
            return self.span(start, stop) if start < stop else (0, 0)
        if self.scale == 1:
            return start, stop
        first, last = start * self.scale, stop * self.scale
        assert first.denominator == last.denominator == 1
        return first.numerator, last.numerator


@dataclass(frozen=True)
class Slice:
    """A dimension of an input of which each worker reads the same slice."""

    start: int
    stop: int


InputSpec = tuple[Sharded | Slice | None, ...]
"""For each dimension of an input how it is sharded, or the slice that all workers read; None for all of it."""


@dataclass(frozen=True)
class Workers:
    """The workers of an operation.

    Attributes:
        grid: their grid, with as many dimensions as the operation's shape.
        blocks: their blocks of this shape.
        rank: this rank in the communicator of the grid.
        base: the grid of P_x.
    """

    grid: Grid
    blocks: Blocks
    rank: int
    base: Grid

    @property
    def block(self) -> tuple[Interval, ...]:
        """This rank's block; without elements on a rank that is no worker."""
        return self.blocks.block(self.rank) or ((0, 0),) * len(self.blocks.block_sizes)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's block."""
        return self.blocks.local_shape(self.rank)


@dataclass(frozen=True)
class Operation:
    """An operation whose result can be computed in blocks.

    Attributes:
        shape: of the space that is split into the workers' blocks, usually the shape of the result.
        input_specs: for each tensor of the call the region that a worker reads; None if only dtype and device count.
        make: constructs, on all workers together, the function that computes a block. Its argument is None if all
            inputs are replicated; then the function computes the whole result.
        splittable: the dimensions that may be split.
        if_requested: dimensions that a plan may split instead, with the batch or without, or blocks of parameters.
        units: blocks along a dimension are multiples of this.
        placements: the placements of the results, if other than the workers' blocks. Without placements and without a
            layer, workers compute independently, and workers with empty blocks do not compute.
        draw: random numbers for the block of a worker, which are the first argument of its function.
        summed: the same operation, split along a dimension over which it sums.
        received: for blocks of workers, the number of elements that all of them receive while they compute.
    """

    shape: tuple[int, ...]
    input_specs: tuple[InputSpec | None, ...]
    make: Callable[[Workers | None], Run]
    splittable: frozenset[int]
    units: dict[int, int] = field(default_factory=dict)
    placements: Callable[[Workers], Blocks | list[Blocks]] | None = None
    draw: Draw | None = None
    if_requested: frozenset[int] = frozenset()
    summed: Operation | None = None
    received: Callable[[Blocks], int] | None = None

    def blocks(self, ranks: Sequence[int], splits: Sequence[int]) -> Blocks:
        """Blocks of workers, as many along each dimension, as balanced as the units allow."""
        sizes = zip(self.shape, splits, strict=True)
        return Blocks(tuple(ranks), tuple(balanced_sizes(n, p, self.units.get(d, 1)) for d, (n, p) in enumerate(sizes)))


class NoRuleError(NotImplementedError):
    """No rule for an operation, or for a use of it. The message says why."""


class RandomError(NoRuleError):
    """No rule for such random numbers. One worker alone may not draw them: generators would get out of step."""
