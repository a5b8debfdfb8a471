"""Attention where each worker keeps its queries, and keys and values arrive block after block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from distdl.nn.attention.kernels.flash import InputGrads, Partial, gradients, merge_partial, partial_attention
from distdl.nn.attention.kernels.operands import MaskRule, Operands
from distdl.nn.attention.methods.exchanges import Exchange
from distdl.nn.attention.methods.geometry import Geometry
from distdl.nn.base.precision import wide
from distdl.operators import Started
from distdl.partitions.boxes import Interval, cut


class Piece:
    """Keys and values that arrive together.

    Args:
        columns: of the keys.
        exchange: brings them; None for keys of this worker.
    """

    def __init__(self, columns: Interval, exchange: Exchange | None) -> None:
        self.columns, self.exchange = columns, exchange
        self._started: list[Started] = []

    def start(self, tensors: Sequence[torch.Tensor]) -> None:
        """Start sending keys and values. Collective."""
        if self.exchange is not None:
            self._started = [self.exchange.start(x) for x in tensors]

    def wait(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        started, self._started = self._started, []
        return list(tensors) if self.exchange is None else [exchange.wait() for exchange in started]

    def return_gradients(self, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> Sequence[torch.Tensor]:
        """Send gradients of keys and values back to their workers. Collective."""
        return tensors if self.exchange is None else [self.exchange.adjoint(x, like) for x in tensors]


class Ring:
    """Each worker fetches the keys and values of the worker t places before it, for t = 0, 1, ...

    Keys travel during computation; causal workers receive only the keys that they attend to.

    A balanced causal ring of n workers cuts queries and keys into 2n chunks; worker s computes chunks s and 2n - 1 - s.
    Each step then takes each worker the time of two chunks: its late queries attend to every early chunk of keys, and
    of the pairs (early queries, early keys) and (late queries, late keys), exactly one is not in the future.

    Args:
        balanced: whether to balance a causal ring, which moves queries, too.

    Source: W. Brandon et al., "Striped Attention" (2023), for the idea to balance; the chunks are from J. Zhu, "zigzag
    ring attention" (2024).
    """

    def __init__(self, geometry: Geometry, features: tuple[int, int], balanced: bool) -> None:
        self.geometry = g = geometry
        places, place = g.grid.shape[-2], g.grid.place[-2] if g.grid.active else 0
        rows, steps = _zigzag(g, places) if balanced else _in_order(g, places)
        self._rows = [intervals[place] for intervals in rows]
        self._queries = [Exchange(partial(g.fetch_rows, cuts), features) for cuts in rows] if balanced else None
        self._steps = [[Piece(c[place], Exchange(partial(g.fetch, c), features)) for c in step] for step in steps]
        if not balanced and g.has_its_heads():
            self._steps[0] = [Piece(g.columns[place], None)]

    def forward(self, blocks: Operands) -> Partial:
        """The results of this worker's queries, and the statistics of the queries that it computes."""
        results: list[Partial | None] = [None] * len(self._rows)
        queries = self._fetch_rows(blocks.q)
        for pieces, arrived in self._arriving(blocks):
            for piece, tensors in zip(pieces, arrived, strict=True):
                for i, q in enumerate(queries):
                    if self._sees(i, piece) or results[i] is None:
                        new = partial_attention(self._operands(i, q, piece, tensors, blocks))
                        old = results[i]
                        results[i] = Partial(wide(new.output), *new[1:]) if old is None else merge_partial(old, new)
        parts = [part for part in results if part is not None]
        outputs = [part.output.to(blocks.q.dtype) for part in parts]
        return Partial(self._back(outputs, blocks.q), *(torch.cat([part[i] for part in parts], -1) for i in (1, 2)))

    def backward(self, gradient: torch.Tensor, blocks: Operands, result: Partial, wanted: Sequence[bool]) -> InputGrads:
        queries, outputs, grads = (self._fetch_rows(x) for x in (blocks.q, result.output, gradient))
        statistics_by_part = zip(*(x.split([q.shape[-2] for q in queries], -1) for x in result[1:]), strict=True)
        parts = [
            _QueryPart(q, grad, Partial(output, *statistics))
            for q, grad, output, statistics in zip(queries, grads, outputs, statistics_by_part, strict=True)
        ]
        del queries, outputs, grads
        pairs = zip(blocks.masks, wanted, strict=True)
        of_masks = [torch.zeros_like(wide(mask)) if is_wanted else None for mask, is_wanted in pairs]
        totals: list[torch.Tensor | None] = [None, None]
        for pieces, arrived in self._arriving(blocks):
            for piece, tensors in zip(pieces, arrived, strict=True):
                piece_gradients = self._gradients_of_piece(piece, tensors, parts, blocks, of_masks)
                tensors.clear()  # free memory for the exchange below
                for i, x in enumerate(piece.return_gradients(piece_gradients, blocks.k)):
                    totals[i] = _plus(totals[i], x)
                del piece_gradients
        of_queries = [_zeros_unless(part.total, part.q).to(blocks.q.dtype) for part in parts]
        k, v = (_zeros_unless(total, x).to(x.dtype) for total, x in zip(totals, (blocks.k, blocks.v), strict=True))
        return self._back(of_queries, blocks.q), k, v, of_masks

    def _gradients_of_piece(
        self,
        piece: Piece,
        tensors: Sequence[torch.Tensor],
        parts: Sequence[_QueryPart],
        blocks: Operands,
        of_masks: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        """The gradients of keys and values that arrived; adds to the gradients of queries and masks."""
        totals: list[torch.Tensor | None] = [None, None]
        for i, part in enumerate(parts):
            if not self._sees(i, piece):
                continue
            x = self._operands(i, part.q, piece, tensors, blocks)
            grads = gradients(part.gradient, x, part.result, any(grad is not None for grad in of_masks))
            part.total = _plus(part.total, grads.q)
            for j, grad in enumerate((grads.k, grads.v)):
                totals[j] = _plus(totals[j], self._sum_heads(grad, tensors[j]))
            for total, seen in zip(of_masks, x.masks, strict=True):
                if total is not None and grads.scores is not None:
                    self._columns(total, piece).add_(grads.scores.sum_to_size(seen.shape))
        return [_zeros_unless(total, x).to(x.dtype) for total, x in zip(totals, tensors, strict=True)]

    def _arriving(self, blocks: Operands) -> Iterator[tuple[list[Piece], list[list[torch.Tensor]]]]:
        tensors = blocks.k, blocks.v

        def start(t: int) -> None:
            for piece in self._steps[t] if t < len(self._steps) else ():
                piece.start(tensors)

        start(0)
        for t, pieces in enumerate(self._steps):
            start(t + 1)
            yield pieces, [piece.wait(tensors) for piece in pieces]

    def _sees(self, i: int, piece: Piece) -> bool:
        start, stop = piece.columns
        return start < stop and (not self.geometry.causal or start < self._rows[i][1])

    def _operands(
        self, i: int, q: torch.Tensor, piece: Piece, tensors: Sequence[torch.Tensor], blocks: Operands
    ) -> Operands:
        reach = self._rows[i][0] - piece.columns[0] if self.geometry.causal else None
        place = self.geometry.grid.place[-3]
        k, v = (self.geometry.repeat_heads(x, place) for x in tensors)
        masks = [self._columns(mask, piece) for mask in blocks.masks]
        return Operands(q, k, v, masks, MaskRule(blocks.rule.scale, reach))

    def _columns(self, mask: torch.Tensor, piece: Piece) -> torch.Tensor:
        start, stop = piece.columns
        return mask if mask.shape[-1] == 1 else mask[..., start:stop]

    def _sum_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The gradient of keys or values from the gradient for the heads of queries."""
        return self.geometry.sum_heads(gradient, like, self.geometry.grid.place[-3])

    def _fetch_rows(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x] if self._queries is None else [exchange(x) for exchange in self._queries]

    def _back(self, parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        if self._queries is None:
            return parts[0]
        total, *others = (exchange.adjoint(x, like) for exchange, x in zip(self._queries, parts, strict=True))
        for other in others:
            total += other  # each element is 0 in all terms but one
        return total


class _QueryPart:
    """Queries that a worker computes, with the gradient of their output, their results, and their gradient so far."""

    def __init__(self, q: torch.Tensor, gradient: torch.Tensor, result: Partial) -> None:
        self.q, self.gradient, self.result = q, gradient, result
        self.total: torch.Tensor | None = None


def _plus(total: torch.Tensor | None, term: torch.Tensor) -> torch.Tensor:
    return wide(term) if total is None else total.add_(term)


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
    """The rows and columns of a balanced causal ring, as from `_in_order`."""
    chunks, keys = cut(g.rows[-1][1], 2 * places), g.columns[-1][1]
    last = 2 * places - 1

    def columns(chunk: int) -> Interval:
        start, stop = chunks[chunk]
        stop = min(stop, keys)
        return (start, stop) if start < stop else (0, 0)

    steps = []
    for t in range(places):
        early = [(s - t) % places for s in range(places)]
        late = [columns(last - j) if j >= s else (0, 0) for s, j in enumerate(early)]
        steps.append([[columns(j) for j in early], late])
    return [[chunks[s] for s in range(places)], [chunks[last - s] for s in range(places)]], steps
