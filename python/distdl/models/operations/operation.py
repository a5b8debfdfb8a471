"""The form in which rules describe an operation: the regions of inputs that workers read, and its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from distdl import _core
from distdl.models.capture.recording import Node, Run
from distdl.models.operations.placement import Blocks, balanced_sizes
from distdl.partitions.boxes import Interval
from distdl.partitions.grid import Grid

Draw = Callable[[int | None, Sequence[Interval], torch.device], torch.Tensor]
"""A function that draws the random numbers of a block, from a key, the intervals of the block, and a device.

The key and an element's index in the whole tensor determine its number. With None for the key, the numbers are those
that torch draws in one process: every rank draws the whole tensor, so that the generators of all ranks stay in step.
"""


@dataclass(frozen=True)
class Sharded:
    """A dimension of an input that is split as a dimension of the operation's shape is.

    Attributes:
        dim: this dimension of the shape.
        scale: the number of elements of the input for each element of the shape.
        span: in place of a scale, the (start, stop) that a worker reads, from the (start, stop) of its block.
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
        blocks: the blocks into which they split this shape.
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
class BoxFunction:
    """A function that computes any box of a result from the boxes of the inputs that it depends on.

    Attributes:
        run: takes the inputs and then the buffers. With windows, its first argument is the padding of the first input
            with zeros along each of their dimensions, on both sides.
        windows: over the first input, by dimension. Along other dimensions an index depends on the same index.
        mode: of the padding, by its name in ``torch.nn.functional.pad``.
        buffers: of a layer, by their names in it.
    """

    run: Run
    windows: Mapping[int, _core.Window] = field(default_factory=dict)
    mode: str = "constant"
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """An operation whose result can be computed in blocks.

    Attributes:
        shape: the shape that is split into the workers' blocks, usually that of the result.
        input_specs: for each tensor of the call the region that a worker reads; None for a tensor of which only dtype
            and device matter.
        make: constructs, on all workers together, the function that computes a block. Given None in place of workers,
            because all inputs are replicated, it constructs a function that computes the whole result.
        splittable: the dimensions that may be split.
        units: for each dimension the number of which the sizes of blocks are multiples; by default 1.
        placements: the placements of the results, if other than the workers' blocks. An operation without, unless it is
            a layer, exchanges nothing while it computes, so that workers with empty blocks need not call it.
        draw: draws random numbers for a worker's block, which its function takes as the first argument.
        if_requested: dimensions of features. They are split only if a plan says so, perhaps with the batch, or if
            parameters are in blocks.
        summed: the same operation, split along a dimension over which it sums.
        received: from the workers' blocks, the number of elements that all of them receive while they compute.
        exchanges_nothing: although it has placements.
        expands: whether its result is much larger than what it reads, and is likely needed in the blocks of the model's
            input: it costs less to move its inputs there.
        box: computes any box of the result, for workers that compute more than their blocks; None if nothing does.
        of_layer: for a function, the call of the layer whose rule this is.
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
    exchanges_nothing: bool = False
    expands: bool = False
    box: BoxFunction | None = None
    of_layer: Node | None = None

    def blocks(self, ranks: Sequence[int], splits: Sequence[int]) -> Blocks:
        """The blocks of workers, as balanced as the units allow; `splits` are the numbers of blocks by dimension."""
        units = (self.units.get(d, 1) for d in range(len(self.shape)))
        sizes = zip(self.shape, splits, units, strict=True)
        return Blocks(tuple(ranks), tuple(balanced_sizes(*along) for along in sizes))


class NoRuleError(NotImplementedError):
    """No rule for an operation, or for a use of it. The message says why."""


class RandomError(NoRuleError):
    """No rule for these random numbers. With as_sequential, no worker may draw them alone: generators are in step."""
