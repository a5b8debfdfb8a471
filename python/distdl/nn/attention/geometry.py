"""The blocks of attention: which heads and tokens a worker has, and which it needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from distdl import operators
from distdl.collective.grid import Grid
from distdl.operators import Operator
from distdl.parameters.layout import Interval, cut

FEW = 1 << 17  # elements that travel as one message, or are computed at once, though this takes memory once more

Sizes = Sequence[Sequence[int]]
"""The sizes of a tensor's blocks, by dimension."""


def intervals_of(sizes: Sequence[int]) -> list[Interval]:
    """(start, stop) of blocks of these sizes."""
    return list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))


def by_place(grid: Grid, shapes: Sequence[Sequence[int]], d: int) -> list[int]:
    """The extents of the workers' tensors in dimension d, at each place along it."""
    found: dict[int, int] = {}
    for worker, shape in enumerate(shapes):
        found.setdefault(grid.index(worker)[d], shape[d])
    return [found[at] for at in range(grid.shape[d])]


def moved(operator: Operator | None, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as one message; as they are without an operator."""
    if operator is None:
        return k, v
    both = operator(torch.cat([k, v], -1))
    return both[..., : k.shape[-1]], both[..., k.shape[-1] :]


class Geometry:
    """The places of queries and keys on a grid ``[*batch, heads, sequence, 1]``.

    Attributes:
        query, key: the sizes of the blocks along each dimension.
        heads_grid: the same workers, with the sequence whole and each worker's heads cut among those along it.
    """

    def __init__(self, layer: str, grid: Grid, query: Sizes, key: Sizes, causal: bool) -> None:
        self.layer, self.grid, self.query, self.key, self.causal = layer, grid, query, key, causal
        *batch, heads, sequence, _ = grid.shape
        self.heads_grid = grid.reshaped((*batch, heads * sequence, 1, 1))
        self.group = max(1, sum(query[-3])) // max(1, sum(key[-3]))
        self.rows, self.columns = intervals_of(query[-2]), intervals_of(key[-2])
        self._heads = intervals_of(query[-3])
        self._fewer_heads = [
            (start + first, start + last) for start, stop in self._heads for first, last in cut(stop - start, sequence)
        ]

    def group_of_heads(self, groups: int) -> Geometry:
        """The places of one of so many groups of heads, to each of which every worker contributes as many heads."""
        query, key = ([*x[:-3], [n // groups for n in x[-3]], *x[-2:]] for x in (self.query, self.key))
        return Geometry(self.layer, self.grid, query, key, self.causal)

    def _keys_of(self, heads: Interval) -> Interval:
        """The heads of keys that heads of queries look at."""
        start, stop = heads
        return (start // self.group, -(-stop // self.group)) if stop > start else (0, 0)

    def exchange(self, target: Grid, wanted: Sequence[Sequence[Interval]]) -> Operator:
        """Bring each worker of a grid the box that it wants of a tensor on the grid."""
        return operators.interval_exchange(self.layer, self.grid, target, wanted)

    def _batch(self) -> list[list[Interval]]:
        return [intervals_of(sizes) for sizes in self.query[:-3]]

    def for_heads(self) -> tuple[list[list[Interval]], list[list[Interval]], list[Interval]]:
        """Intervals of queries and of keys with which each worker has all tokens of some heads, and these heads."""
        queries = [*self._batch(), self._fewer_heads, [(0, sum(self.query[-2]))]]
        keys = [*self._batch(), [self._keys_of(one) for one in self._fewer_heads], [(0, sum(self.key[-2]))]]
        return queries, keys, self._fewer_heads

    def keys_of_line(self) -> list[Interval]:
        """The heads of keys that the workers at each place along the heads need."""
        return [self._keys_of(one) for one in self._heads]

    def has_its_heads(self) -> bool:
        """Whether each worker has the heads of keys that its queries look at."""
        return self.keys_of_line() == intervals_of(self.key[-3])

    def fetch(self, columns: Sequence[Interval], features: int) -> Operator:
        """The exchange that brings the workers at each place along the sequence these columns of keys and values."""
        return self.exchange(self.grid, [*self._batch(), self.keys_of_line(), columns, [(0, features)]])

    def fetch_rows(self, rows: Sequence[Interval], features: int) -> Operator:
        """The exchange that brings the workers at each place along the sequence these rows of queries."""
        return self.exchange(self.grid, [*self._batch(), self._heads, rows, [(0, features)]])

    def keys_for_all(self, features: int) -> Operator | None:
        """The exchange that brings each worker all keys and values of its heads; None where it has them."""
        places, total = self.grid.shape[-2], sum(self.key[-2])
        if places == 1 and self.has_its_heads():
            return None
        return self.fetch([(0, total)] * places, features)

    def reach(self, start: int) -> int:
        """The last key that this worker's first query looks at, counted from a column."""
        return self.rows[self.grid.place[-2]][0] - start

    def for_queries(self, x: torch.Tensor, place: int, by_heads: bool = False) -> torch.Tensor:
        """Keys or values, repeated for each of the heads of queries that look at them."""
        chosen = self._chosen(x, place, by_heads)
        return x if chosen is None else x.index_select(-3, chosen)

    def of_keys(self, x: torch.Tensor, like: torch.Tensor, place: int, by_heads: bool = False) -> torch.Tensor:
        """The adjoint of `for_queries`; `like` has the shape of its argument."""
        chosen = self._chosen(x, place, by_heads)
        return x if chosen is None else torch.zeros_like(like).index_add_(-3, chosen, x)

    def _chosen(self, x: torch.Tensor, place: int, by_heads: bool = False) -> torch.Tensor | None:
        """For each head of queries the number of the head among the keys that a worker has; None where they agree."""
        if self.group == 1:
            return None
        start, stop = (self._fewer_heads if by_heads else self._heads)[place]
        first = self._keys_of((start, stop))[0]
        return torch.arange(start, stop, device=x.device) // self.group - first
