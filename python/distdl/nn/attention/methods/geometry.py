"""The blocks of attention: the heads and tokens that workers have and need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl import operators
from distdl.operators import Operator
from distdl.partitions.boxes import Interval, block_intervals, cut
from distdl.partitions.grid import Grid

FEW = 1 << 17  # elements that travel as one message, or are computed at once, though this takes memory once more

BlockSizes = Sequence[Sequence[int]]
"""The sizes of a tensor's blocks, by dimension."""


def extents_by_place(grid: Grid, shapes: Sequence[Sequence[int]], d: int) -> list[int]:
    """The extents of the workers' tensors in dimension d, by place along it."""
    extents: dict[int, int] = {}
    for worker, shape in enumerate(shapes):
        extents.setdefault(grid.index(worker)[d], shape[d])
    return [extents[at] for at in range(grid.shape[d])]


def exchanged(operator: Operator | None, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exchange keys and values as one message; no operator leaves them in place."""
    if operator is None:
        return k, v
    both = operator(torch.cat([k, v], -1))
    return both[..., : k.shape[-1]], both[..., k.shape[-1] :]


class Geometry:
    """The blocks of queries and keys on a grid ``[*batch, heads, sequence, 1]``.

    Attributes:
        query, key: the sizes of the blocks along each dimension.
        heads_grid: the same workers with whole sequences: workers along the sequence divide their heads.
    """

    def __init__(self, layer: str, grid: Grid, query: BlockSizes, key: BlockSizes, causal: bool) -> None:
        self.layer, self.grid, self.query, self.key, self.causal = layer, grid, query, key, causal
        *batch, heads, sequence, _ = grid.shape
        self.heads_grid = grid.reshaped((*batch, heads * sequence, 1, 1))
        self.group = max(1, sum(query[-3])) // max(1, sum(key[-3]))
        self.rows, self.columns = block_intervals(query[-2]), block_intervals(key[-2])
        self._heads = block_intervals(query[-3])
        self._exchanged_heads = [
            (start + first, start + last) for start, stop in self._heads for first, last in cut(stop - start, sequence)
        ]

    def group_of_heads(self, groups: int) -> Geometry:
        """The geometry of each of `groups` groups of heads, to which every worker contributes equally."""
        query, key = ([*x[:-3], [n // groups for n in x[-3]], *x[-2:]] for x in (self.query, self.key))
        return Geometry(self.layer, self.grid, query, key, self.causal)

    def _key_heads(self, heads: Interval) -> Interval:
        start, stop = heads
        return (start // self.group, -(-stop // self.group)) if stop > start else (0, 0)

    def exchange(self, target: Grid, wanted: Sequence[Sequence[Interval]]) -> Operator:
        """Bring each worker of a grid its wanted box of a tensor on this grid."""
        return operators.interval_exchange(self.layer, self.grid, target, wanted)

    def _batch(self) -> list[list[Interval]]:
        return [block_intervals(sizes) for sizes in self.query[:-3]]

    def for_heads(self) -> tuple[list[list[Interval]], list[list[Interval]], list[Interval]]:
        """Intervals of queries and of keys that give each worker some heads of all tokens; and these heads."""
        queries = [*self._batch(), self._exchanged_heads, [(0, sum(self.query[-2]))]]
        keys = [*self._batch(), [self._key_heads(heads) for heads in self._exchanged_heads], [(0, sum(self.key[-2]))]]
        return queries, keys, self._exchanged_heads

    def key_heads_by_place(self) -> list[Interval]:
        return [self._key_heads(heads) for heads in self._heads]

    def has_its_heads(self) -> bool:
        return self.key_heads_by_place() == block_intervals(self.key[-3])

    def fetch(self, columns: Sequence[Interval], features: int) -> Operator:
        """The exchange of keys and values that brings these columns, by place along the sequence."""
        return self.exchange(self.grid, [*self._batch(), self.key_heads_by_place(), columns, [(0, features)]])

    def fetch_rows(self, rows: Sequence[Interval], features: int) -> Operator:
        """The exchange of queries that brings these rows, by place along the sequence."""
        return self.exchange(self.grid, [*self._batch(), self._heads, rows, [(0, features)]])

    def keys_for_all(self, features: int) -> Operator | None:
        """The exchange that brings each worker all keys and values of its heads; None if nothing travels."""
        places, total = self.grid.shape[-2], sum(self.key[-2])
        if places == 1 and self.has_its_heads():
            return None
        return self.fetch([(0, total)] * places, features)

    def reach(self, start: int) -> int:
        """The last key of this worker's first query, counted from a column."""
        return self.rows[self.grid.place[-2]][0] - start

    def repeat_heads(self, x: torch.Tensor, place: int, by_heads: bool = False) -> torch.Tensor:
        chosen = self._key_head_indices(x, place, by_heads)
        return x if chosen is None else x.index_select(-3, chosen)

    def sum_heads(self, x: torch.Tensor, like: torch.Tensor, place: int, by_heads: bool = False) -> torch.Tensor:
        """The adjoint of `repeat_heads`; `like` has the shape of its argument."""
        chosen = self._key_head_indices(x, place, by_heads)
        return x if chosen is None else torch.zeros_like(like).index_add_(-3, chosen, x)

    def _key_head_indices(self, x: torch.Tensor, place: int, by_heads: bool = False) -> torch.Tensor | None:
        """For each head of queries, the index of its head among a worker's keys; None if they are equal."""
        if self.group == 1:
            return None
        start, stop = (self._exchanged_heads if by_heads else self._heads)[place]
        first = self._key_heads((start, stop))[0]
        return torch.arange(start, stop, device=x.device) // self.group - first
