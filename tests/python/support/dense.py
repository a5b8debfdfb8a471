"""The primitives by their definitions, in one process: from the tensors of all ranks to the results of all ranks.

Nothing but indexing and sums of whole tensors, which PyTorch differentiates. Nothing here uses the package.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from support.blocks import balanced

Tensors = Sequence[torch.Tensor]  # by rank
Box = Sequence[tuple[int, int]]  # (start, stop) in each dimension


@dataclass(frozen=True)
class Grid:
    """Workers in row-major order of a shape; number i of them is rank ranks[i] of the job."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    @cached_property
    def workers(self) -> list[tuple[tuple[int, ...], int]]:
        """Index and rank of each."""
        return list(zip(itertools.product(*map(range, self.shape)), self.ranks, strict=True))

    def along(self, index: tuple[int, ...], axes: Sequence[int]) -> list[int]:
        """The ranks of the workers whose index differs from this one along these axes only."""
        kept = [d for d in range(len(self.shape)) if d not in axes]
        return [rank for there, rank in self.workers if all(there[d] == index[d] for d in kept)]


def matches(roots: Grid, many: Grid, transpose_roots: bool, transpose_many: bool) -> dict[int, int]:
    """By rank of `many`, the rank of the worker of `roots` that stands for it where shapes are broadcast."""
    extents = roots.shape[::-1] if transpose_roots else roots.shape
    at = {index[::-1] if transpose_roots else index: rank for index, rank in roots.workers}
    root_of = {}
    for index, rank in many.workers:
        read = index[::-1] if transpose_many else index
        last = read[len(read) - len(extents) :]
        root_of[rank] = at[tuple(0 if n == 1 else i for i, n in zip(last, extents, strict=True))]
    return root_of


def by_role(tensors: Tensors, P_x: Grid, results: Mapping[int, torch.Tensor], preserve_batch: bool = True) -> Tensors:
    """A result where there is one; of the other ranks, those in P_x get zero volume, and the rest their input."""

    def nothing(x):
        return x.flatten()[:0].reshape([x.shape[0], 0] if preserve_batch and x.dim() else [0])

    return [
        results[rank] if rank in results else nothing(x) if rank in P_x.ranks else x for rank, x in enumerate(tensors)
    ]


def broadcast(tensors, P_x, P_y, transpose_src, transpose_dest, preserve_batch):
    source = matches(P_x, P_y, transpose_src, transpose_dest)
    return by_role(tensors, P_x, {rank: tensors[source[rank]] for rank in P_y.ranks}, preserve_batch)


def sum_reduce(tensors, P_x, P_y, transpose_src, transpose_dest, preserve_batch):
    target = matches(P_y, P_x, transpose_dest, transpose_src)
    sums = {root: sum_of(tensors, [rank for rank in P_x.ranks if target[rank] == root]) for root in P_y.ranks}
    return by_role(tensors, P_x, sums, preserve_batch)


def sum_of(tensors, ranks):
    return torch.stack([tensors[rank] for rank in ranks]).sum(0)


def all_sum_reduce(tensors, P_x, axes):
    return by_role(tensors, P_x, {rank: sum_of(tensors, P_x.along(index, axes)) for index, rank in P_x.workers})


def reduce_scatter(tensors, P_x, axes):
    results = {}
    for index, rank in P_x.workers:
        results[rank] = sum_of(tensors, P_x.along(index, axes))
        for d in axes:
            start, stop = balanced(results[rank].shape[d], P_x.shape[d], index[d])
            results[rank] = results[rank].narrow(d, start, stop - start)
    return by_role(tensors, P_x, results)


def assembled(tensors, P: Grid) -> tuple[torch.Tensor, dict[int, Box]]:
    """The whole tensor, and which box of it each rank has."""
    first = dict(P.workers)
    cuts = []
    for d, n in enumerate(P.shape):
        sizes = [tensors[first[tuple(i if e == d else 0 for e in range(len(P.shape)))]].shape[d] for i in range(n)]
        cuts.append([0, *itertools.accumulate(sizes)])
    boxes = {rank: [(cut[i], cut[i + 1]) for cut, i in zip(cuts, index, strict=True)] for index, rank in P.workers}
    whole = tensors[P.ranks[0]].new_zeros([cut[-1] for cut in cuts])
    for rank, box in boxes.items():
        whole[tuple(slice(*bounds) for bounds in box)] = tensors[rank]
    return whole, boxes


def window(whole: torch.Tensor, box: Box, periodic: Sequence[bool], fill: float) -> torch.Tensor:
    """A box that may reach beyond the tensor, where it wraps or is filled."""
    for d, ((start, stop), wraps) in enumerate(zip(box, periodic, strict=True)):
        wanted, n = torch.arange(start, stop), whole.shape[d]
        if n == 0:
            whole = whole.new_full([len(wanted) if e == d else m for e, m in enumerate(whole.shape)], fill)
            continue
        outside = ((wanted < 0) | (wanted >= n)).nonzero().flatten()
        whole = whole.index_select(d, wanted % n)
        if not wraps:
            whole = whole.index_fill(d, outside, fill)
    return whole


def all_gather(tensors, P_x, axes):
    whole, boxes = assembled(tensors, P_x)
    results = {}
    for rank, box in boxes.items():
        seen = [slice(None) if d in axes else slice(*bounds) for d, bounds in enumerate(box)]
        results[rank] = whole[tuple(seen)]
    return by_role(tensors, P_x, results)


def interval_exchange(tensors, P_x, P_y, wanted, periodic, fill):
    """`wanted` are the intervals of each dimension, by the place along that dimension of P_y."""
    whole, _ = assembled(tensors, P_x)
    boxes = {rank: [along[i] for along, i in zip(wanted, index, strict=True)] for index, rank in P_y.workers}
    results = {rank: window(whole, box, periodic, fill) for rank, box in boxes.items()}
    return by_role(tensors, P_x, results)


def repartition(tensors, P_x, P_y, preserve_batch):
    whole, _ = assembled(tensors, P_x)
    results = {}
    for index, rank in P_y.workers:
        cuts = zip(whole.shape, P_y.shape, index, strict=True)
        results[rank] = whole[tuple(slice(*balanced(n, p, i)) for n, p, i in cuts)]
    return by_role(tensors, P_x, results, preserve_batch)


def halo_exchange(tensors, P_x, widths, periodic, fill):
    """`widths` are (left, right) in each dimension, by rank."""
    whole, boxes = assembled(tensors, P_x)
    results = {}
    for rank, box in boxes.items():
        grown = [(start - left, stop + right) for (start, stop), (left, right) in zip(box, widths[rank], strict=True)]
        results[rank] = window(whole, grown, periodic, fill)
    return by_role(tensors, P_x, results)
