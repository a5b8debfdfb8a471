"""How blocks of a tensor get to the workers that read them: by an exchange of intervals, or by a cut out of copies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from distdl import operators
from distdl.models.operations.operation import Along, Part, Reads
from distdl.models.operations.placement import Blocks, Copies, Placement, intervals_of, overlap
from distdl.parameters.layout import Interval
from distdl.parameters.transport import zero_of
from distdl.partitions.grid import Grid


@dataclass(frozen=True)
class Need:
    """The part of a tensor that each worker of an operation reads.

    Attributes:
        ranks: the workers.
        axes: for each of their axes the dimension of the tensor that is split along it, or None: all read the same.
        wanted: for each of these axes the (start, stop) that each worker along it reads; (0, 1) for None.
        parts: the (start, stop) of the dimensions that belong to no axis, where nobody reads all of them.
        wraps: the dimensions whose end is followed by their beginning.
    """

    ranks: tuple[int, ...]
    axes: tuple[int | None, ...]
    wanted: tuple[tuple[Interval, ...], ...]
    parts: tuple[tuple[int, Interval], ...] = ()
    wraps: tuple[int, ...] = ()

    @classmethod
    def of(cls, workers: Blocks, reads: Reads, shape: Sequence[int]) -> Need:
        """The parts that the workers of blocks read."""
        axes: list[int | None] = []
        wanted = []
        for axis, sizes in enumerate(workers.cuts):
            along = [(d, read) for d, read in enumerate(reads) if isinstance(read, Along) and read.dim == axis]
            axes.append(along[0][0] if along else None)
            if along:
                wanted.append(tuple(along[0][1].interval(*read) for read in intervals_of(sizes)))
            else:
                wanted.append(((0, 1),) * len(sizes))
        parts = tuple((d, (read.start, read.stop)) for d, read in enumerate(reads) if isinstance(read, Part))
        wraps = tuple(d for d, read in enumerate(reads) if isinstance(read, Along) and read.wraps)
        return cls(workers.ranks, tuple(axes), tuple(wanted), parts, wraps)

    @classmethod
    def of_all(cls, ranks: tuple[int, ...]) -> Need:
        """Each of these ranks reads all of it."""
        return cls(ranks, (None,), (((0, 1),) * len(ranks),))

    def box(self, rank: int, shape: Sequence[int]) -> tuple[Interval, ...] | None:
        """The box that a rank reads of a tensor of this shape."""
        if rank not in self.ranks:
            return None
        place = [*itertools.product(*(range(len(along)) for along in self.wanted))][self.ranks.index(rank)]
        box = self.common(shape)
        for axis, dim in enumerate(self.axes):
            if dim is not None:
                box[dim] = self.wanted[axis][place[axis]]
        return tuple(box)

    def common(self, shape: Sequence[int]) -> list[Interval]:
        """The interval that all workers read, for each dimension that belongs to no axis."""
        parts = dict(self.parts)
        return [parts.get(d, (0, n)) for d, n in enumerate(shape)]


def pieces(box: Sequence[Interval], shape: Sequence[int]) -> list[tuple[Interval, ...]]:
    """The boxes within a tensor of which a box consists that goes on at the beginning where the tensor ends."""
    along = []
    for (start, stop), n in zip(box, shape, strict=True):
        turns = range(start // n, -(-stop // n)) if start < stop else range(0)
        along.append([(max(start - turn * n, 0), min(stop - turn * n, n)) for turn in turns])
    return [*itertools.product(*along)]


def received(source: Placement, need: Need, shape: Sequence[int]) -> dict[int, int]:
    """How many elements each rank receives from others."""
    if isinstance(source, Copies):
        return {}
    counts = {}
    for rank in need.ranks:
        box = need.box(rank, shape)
        assert box is not None
        own = source.block(rank)
        counts[rank] = sum(
            overlap(piece, piece) - (overlap(piece, own) if own is not None else 0) for piece in pieces(box, shape)
        )
    return {rank: count for rank, count in counts.items() if count}


class Move:
    """Brings a tensor from where its blocks are to the workers that read it.

    Constructing and as_function are collective over the constructors of `like`.
    """

    def __init__(self, name: str, source: Placement, need: Need, shape: Sequence[int], like: Grid) -> None:
        self._box = need.box(like.me, shape)
        self._narrow = isinstance(source, Copies)
        axes = {d: axis for axis, d in enumerate(need.axes) if d is not None}
        inserted = [axis for axis, d in enumerate(need.axes) if d is None]
        self._dim, self._inserted = len(shape), len(inserted)
        if isinstance(source, Blocks):
            # Grids whose axes are those of which nothing is split, then the dimensions as they are in memory.
            splits = [1] * len(inserted) + [*source.splits]
            x = like.related(source.ranks, splits)
            common = need.common(shape)
            wanted = [[*need.wanted[axis]] for axis in inserted]
            wanted += [[*need.wanted[axes[d]]] if d in axes else [common[d]] for d in range(len(shape))]
            places = np.array(need.ranks).reshape([len(along) for along in need.wanted])
            ranks = places.transpose(inserted + [axes[d] for d in sorted(axes)]).ravel()
            y = like.related(tuple(ranks.tolist()), [len(along) for along in wanted])
            periodic = [False] * len(inserted) + [d in need.wraps for d in range(len(shape))]
            self._operator = operators.interval_exchange(name, x, y, wanted, periodic)

    @staticmethod
    def is_needed(source: Placement, need: Need, shape: Sequence[int]) -> bool:
        """Whether any rank reads anything but exactly what it has."""
        if isinstance(source, Copies):
            return any(need.box(rank, shape) != tuple((0, n) for n in shape) for rank in need.ranks)
        return set(source.ranks) != set(need.ranks) or any(
            source.block(rank) != need.box(rank, shape) for rank in need.ranks
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """This worker's box; a tensor without elements on ranks that read nothing."""
        if self._narrow:
            return self._cut_out(x)
        if x.dim() == self._dim:
            for _ in range(self._inserted):
                x = x.unsqueeze(0)
        y = self._operator(x)
        if self._box is not None:
            for _ in range(self._inserted):
                y = y.squeeze(0)
        return y

    def _cut_out(self, x: torch.Tensor) -> torch.Tensor:
        if self._box is None:
            return nothing([x])
        for d, (start, stop) in enumerate(self._box):
            n = x.shape[d]
            if start < 0 or stop > n:
                x = x.index_select(d, torch.arange(start, stop, device=x.device) % n)
            elif stop - start != n:
                x = x.narrow(d, start, stop - start)
        return x


def nothing(inputs: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> torch.Tensor:
    """The result on a rank that has no part of it, connected with the inputs as it is on the others."""
    result = inputs[0].new_zeros(0, dtype=dtype)
    for tensor in inputs:
        if tensor.requires_grad:
            zero = zero_of(tensor)
            result = result + (zero.real if zero.is_complex() and not result.is_complex() else zero)
    return result
