"""Attention where each worker keeps its queries, and the keys come block after block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from distdl.nn.attention.flash import Derived, Found, attended, gradients, merged
from distdl.nn.attention.geometry import Geometry
from distdl.nn.attention.moves import Move
from distdl.nn.attention.operands import Operands, Rule
from distdl.nn.precision import wide
from distdl.operators import Started
from distdl.parameters.layout import Interval, cut


class Piece:
    """Keys and values that arrive together.

    Args:
        columns: of the keys.
        move: the exchange that brings them; None for those that this worker has.
    """

    def __init__(self, columns: Interval, move: Move | None) -> None:
        self.columns, self.move = columns, move
        self._started: list[Started] = []

    def start(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let keys and values travel. Collective."""
        if self.move is not None:
            self._started = [self.move.start(x) for x in tensors]

    def wait(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Keys and values."""
        started, self._started = self._started, []
        return list(tensors) if self.move is None else [one.wait() for one in started]

    def returned(self, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return gradients of keys and values to the workers that the keys and values came from. Collective."""
        return tensors if self.move is None else [self.move.adjoint(x, like) for x in tensors]


class Ring:
    """Each worker fetches the keys and values of the worker t places before it, for t = 0, 1, ...

    The next keys travel while the worker computes with others. Where a causal worker looks at a part of a block, this
    part travels.

    A causal ring of n workers is balanced if its queries and keys are cut into 2n chunks, of which worker s computes
    with chunks s and 2n - 1 - s. Then each step takes each worker the time of two chunks: the late chunk of its queries
    looks at each early chunk of keys, and of the early chunk with an early one, and the late chunk with a late one,
    exactly one pair is not in the future.

    Args:
        geometry: the blocks.
        features: of keys, and of values.
        balanced: whether a causal ring is balanced: it moves queries, too.

    Source: W. Brandon et al., "Striped Attention" (2023), for the idea to balance; the chunks are those of J. Zhu,
    "zigzag ring attention" (2024).
    """

    def __init__(self, geometry: Geometry, features: tuple[int, int], balanced: bool) -> None:
        self.geometry = g = geometry
        places, own = g.grid.shape[-2], g.grid.place[-2] if g.grid.active else 0
        rows, steps = _zigzag(g, places) if balanced else _in_order(g, places)
        self._rows = [one[own] for one in rows]
        self._queries = [Move(partial(g.fetch_rows, one), features) for one in rows] if balanced else None
        self._steps = [[Piece(one[own], Move(partial(g.fetch, one), features)) for one in step] for step in steps]
        if not balanced and g.has_its_heads():
            self._steps[0] = [Piece(g.columns[own], None)]

    def forward(self, own: Operands) -> Found:
        """The results of this worker's queries, and what is known of the queries that it computes with."""
        found: list[Found | None] = [None] * len(self._rows)
        queries = self._there(own.q)
        for pieces, arrived in self._arrivals(own):
            for piece, tensors in zip(pieces, arrived, strict=True):
                for i, q in enumerate(queries):
                    if self._sees(i, piece) or found[i] is None:
                        more = attended(self._operands(i, q, piece, tensors, own))
                        before = found[i]
                        found[i] = Found(wide(more.output), *more[1:]) if before is None else merged(before, more)
        known = [one for one in found if one is not None]
        outputs = [one.output.to(own.q.dtype) for one in known]
        return Found(self._back(outputs, own.q), *(torch.cat([one[i] for one in known], -1) for i in (1, 2)))

    def backward(self, gradient: torch.Tensor, own: Operands, found: Found, wanted: Sequence[bool]) -> Derived:
        """The gradients of this worker's blocks, and of the masks that are wanted."""
        queries, outputs, given = (self._there(x) for x in (own.q, found.output, gradient))
        known = zip(*(one.split([q.shape[-2] for q in queries], -1) for one in found[1:]), strict=True)
        parts = [
            _Part(q, grad, Found(output, *statistics))
            for q, grad, output, statistics in zip(queries, given, outputs, known, strict=True)
        ]
        del queries, outputs, given
        of_masks = [torch.zeros_like(wide(mask)) if one else None for mask, one in zip(own.masks, wanted, strict=True)]
        totals: list[torch.Tensor | None] = [None, None]
        for pieces, arrived in self._arrivals(own):
            for piece, tensors in zip(pieces, arrived, strict=True):
                of_piece = self._of_piece(piece, tensors, parts, own, of_masks)
                tensors.clear()  # for what follows takes memory, too
                for i, x in enumerate(piece.returned(of_piece, own.k)):
                    totals[i] = _plus(totals[i], x)
                del of_piece
        of_queries = [_zeros_unless(part.total, part.q).to(own.q.dtype) for part in parts]
        k, v = (_zeros_unless(total, x).to(x.dtype) for total, x in zip(totals, (own.k, own.v), strict=True))
        return self._back(of_queries, own.q), k, v, of_masks

    def _of_piece(
        self,
        piece: Piece,
        tensors: Sequence[torch.Tensor],
        parts: Sequence[_Part],
        own: Operands,
        of_masks: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        """The gradients of keys and values that arrived; those of queries and masks are added up."""
        totals: list[torch.Tensor | None] = [None, None]
        for i, part in enumerate(parts):
            if not self._sees(i, piece):
                continue
            x = self._operands(i, part.q, piece, tensors, own)
            of = gradients(part.gradient, x, part.found, any(one is not None for one in of_masks))
            part.total = _plus(part.total, of.q)
            for j, one in enumerate((of.k, of.v)):
                totals[j] = _plus(totals[j], self._summed(one, tensors[j]))
            for total, seen in zip(of_masks, x.masks, strict=True):
                if total is not None and of.scores is not None:
                    self._columns(total, piece).add_(of.scores.sum_to_size(seen.shape))
        return [_zeros_unless(total, x).to(x.dtype) for total, x in zip(totals, tensors, strict=True)]

    def _arrivals(self, own: Operands) -> Iterator[tuple[list[Piece], list[list[torch.Tensor]]]]:
        """The pieces of each step with their keys and values."""
        tensors = own.k, own.v

        def start(t: int) -> None:
            for piece in self._steps[t] if t < len(self._steps) else ():
                piece.start(tensors)

        start(0)
        for t, pieces in enumerate(self._steps):
            start(t + 1)
            yield pieces, [piece.wait(tensors) for piece in pieces]

    def _sees(self, i: int, piece: Piece) -> bool:
        """Whether queries of part i look at a piece."""
        start, stop = piece.columns
        return start < stop and (not self.geometry.causal or start < self._rows[i][1])

    def _operands(
        self, i: int, q: torch.Tensor, piece: Piece, tensors: Sequence[torch.Tensor], own: Operands
    ) -> Operands:
        """Queries of part i, and a piece for their heads."""
        reach = self._rows[i][0] - piece.columns[0] if self.geometry.causal else None
        place = self.geometry.grid.place[-3]
        k, v = (self.geometry.for_queries(x, place) for x in tensors)
        return Operands(q, k, v, [self._columns(mask, piece) for mask in own.masks], Rule(own.rule.scale, reach))

    def _columns(self, mask: torch.Tensor, piece: Piece) -> torch.Tensor:
        """The columns of a mask for the keys of a piece."""
        start, stop = piece.columns
        return mask if mask.shape[-1] == 1 else mask[..., start:stop]

    def _summed(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The gradient of keys or values from that for the heads of queries."""
        return self.geometry.of_keys(gradient, like, self.geometry.grid.place[-3])

    def _there(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The rows that this worker computes with, by part."""
        return [x] if self._queries is None else [move(x) for move in self._queries]

    def _back(self, parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """This worker's rows, from the parts of all workers."""
        if self._queries is None:
            return parts[0]
        total, *others = (move.adjoint(x, like) for move, x in zip(self._queries, parts, strict=True))
        for one in others:
            total += one  # each element is 0 but in one of them
        return total


class _Part:
    """Queries that a worker computes with, the gradient of their output, what they found, and their gradient so far."""

    def __init__(self, q: torch.Tensor, gradient: torch.Tensor, found: Found) -> None:
        self.q, self.gradient, self.found = q, gradient, found
        self.total: torch.Tensor | None = None


def _plus(total: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    """A sum, which takes over its first term."""
    return wide(more) if total is None else total.add_(more)


def _zeros_unless(total: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if total is None else total


def _in_order(g: Geometry, places: int) -> tuple[list[list[Interval]], list[list[list[Interval]]]]:
    """The rows of queries by part and place, and the columns of keys by step, piece and place."""

    def seen(place: int, block: int) -> Interval:
        start, stop = g.columns[block]
        if g.causal:
            stop = min(stop, g.rows[place][1])
        return (start, stop) if start < stop else (0, 0)

    return [g.rows], [[[seen(s, (s - t) % places) for s in range(places)]] for t in range(places)]


def _zigzag(g: Geometry, places: int) -> tuple[list[list[Interval]], list[list[list[Interval]]]]:
    """The same for a causal ring that is balanced."""
    chunks, keys = cut(g.rows[-1][1], 2 * places), g.columns[-1][1]
    last = 2 * places - 1

    def columns(chunk: int) -> Interval:
        start, stop = chunks[chunk]
        stop = min(stop, keys)
        return (start, stop) if start < stop else (0, 0)

    steps = []
    for t in range(places):
        of = [(s - t) % places for s in range(places)]
        late = [columns(last - j) if j >= s else (0, 0) for s, j in enumerate(of)]
        steps.append([[columns(j) for j in of], late])
    return [[chunks[s] for s in range(places)], [chunks[last - s] for s in range(places)]], steps
