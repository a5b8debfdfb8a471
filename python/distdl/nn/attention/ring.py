"""Attention where each worker keeps its queries, and the keys come block after block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import torch

from distdl.nn.attention.geometry import Geometry, moved
from distdl.nn.attention.kernel import Masks, Rule, composed, flash, flash_backward, recomputed
from distdl.nn.precision import wide
from distdl.operators import Operator, Started

Context: TypeAlias = torch.autograd.function.FunctionCtx


class Ring:
    """Each worker fetches the keys and values of the worker t places before it, for t = 0, 1, ...

    The next block travels while one is computed with. Blocks that a causal worker looks at in part travel in part.

    Args:
        geometry: the blocks.
        keys: the exchange that brings each worker all keys, for second derivatives.
        features: of the values.
    """

    def __init__(self, geometry: Geometry, keys: Operator | None, features: int) -> None:
        self.geometry, self.keys = geometry, keys
        g, places = geometry, geometry.grid.shape[-2]
        self._own = g.grid.place[-2] if g.grid.active else 0
        self._columns: list[tuple[int, int]] = []
        # Of keys and of values: one message for both would take the memory of both once more.
        self._fetches: list[tuple[Operator, Operator] | None] = []
        for t in range(places):
            columns = [self._seen(s, (s - t) % places) for s in range(places)]
            stays = t == 0 and g.has_its_heads()
            self._columns.append(g.columns[self._own] if stays else columns[self._own])
            self._fetches.append(None if stays else (g.fetch(columns, g.key[-1][0]), g.fetch(columns, features)))

    def _seen(self, place: int, block: int) -> tuple[int, int]:
        """The columns of a block that queries at a place along the sequence look at."""
        start, stop = self.geometry.columns[block]
        if self.geometry.causal:
            stop = min(stop, self.geometry.rows[place][1])
        return (start, stop) if start < stop else (0, 0)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, scale: float) -> torch.Tensor:
        """The results of this worker's queries."""
        result: torch.Tensor = _Ring.apply(q, k, v, self, scale, *masks)
        return result

    def blocks(self, k: torch.Tensor, v: torch.Tensor, masks: Masks, scale: float) -> Iterator[Block]:
        """The blocks of keys and values, one after the other."""
        g = self.geometry
        started: dict[int, list[Started]] = {}

        def start(t: int) -> None:
            fetch = self._fetches[t] if t < len(self._fetches) else None
            if fetch is not None:
                started[t] = [move.start(x) for move, x in zip(fetch, (k, v), strict=True)]

        start(0)
        for t, fetch in enumerate(self._fetches):
            start(t + 1)
            here = [k, v] if fetch is None else [call.wait() for call in started.pop(t)]
            start_column, stop = self._columns[t]
            rule = Rule(scale, g.reach(start_column) if g.causal else None)
            seen = [mask if mask.shape[-1] == 1 else mask[..., start_column:stop] for mask in masks]
            yield Block(here, seen, rule, fetch)
            del here

    def summed(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The adjoint of `repeated`."""
        chosen = self.geometry.chosen(like, self.geometry.grid.place[-3])
        return gradient if chosen is None else torch.zeros_like(like).index_add_(-3, chosen, gradient)

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        """Keys or values for the heads of this worker's queries."""
        return self.geometry.for_queries(x, self.geometry.grid.place[-3])


class Block(NamedTuple):
    """A block of keys and values, and what brought it here."""

    here: list[torch.Tensor]  # emptied by whoever needs them no longer
    masks: Masks
    rule: Rule
    fetch: tuple[Operator, Operator] | None


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        ring: Ring,
        scale: float,
        *masks: torch.Tensor,
    ) -> torch.Tensor:
        total: torch.Tensor | None = None
        sums = wide(q)
        for block in ring.blocks(k, v, masks, scale):
            keys, values = map(ring.repeated, block.here)
            output, more = flash(q, keys, values, block.masks, block.rule)
            del keys, values
            total, sums = (wide(output), more) if total is None else _merged(total, sums, output, more)
        assert total is not None
        output = total.to(q.dtype)
        ctx.save_for_backward(q, k, v, output, sums, *masks)
        ctx.ring, ctx.scale = ring, scale
        return output

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, output, sums, *masks = ctx.saved_tensors
        ring, nothing = ctx.ring, [None] * (2 + len(masks))
        if torch.is_grad_enabled():  # for second derivatives, which the kernel does not have
            found = recomputed(lambda q, k, v: _whole(q, k, v, ring, masks, ctx.scale), (q, k, v), gradients[0])
            return *found, *nothing
        totals: list[torch.Tensor] = []
        for block in ring.blocks(k, v, masks, ctx.scale):
            keys, values = map(ring.repeated, block.here)
            of_block = list(flash_backward(gradients[0], q, keys, values, output, sums, block.masks, block.rule))
            del keys, values
            for i in (1, 2):
                of_block[i] = ring.summed(of_block[i], block.here[i - 1])
            block.here.clear()  # for what follows takes memory, too
            for i, whole in enumerate((q, k, v)):
                mine, of_block[i] = of_block[i], whole.new_empty(0)
                if i > 0 and block.fetch is not None:
                    mine = block.fetch[i - 1].adjoint(whole, mine)
                if len(totals) <= i:
                    totals.append(wide(mine))
                else:
                    totals[i] += mine
        return *(total.to(x.dtype) for total, x in zip(totals, (q, k, v), strict=True)), *nothing


def _merged(
    total: torch.Tensor, sums: torch.Tensor, output: torch.Tensor, more: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results over two sets of keys as those over both. Both are overwritten."""
    both = torch.logaddexp(sums, more)
    largest = both.masked_fill(both == -torch.inf, 0.0)  # a query that looks at no key keeps weights of 0
    total *= (sums - largest).exp().unsqueeze(-1)
    total += wide(output).mul_((more - largest).exp().unsqueeze(-1))
    return total, both


def _whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: Ring, masks: Masks, scale: float) -> torch.Tensor:
    """The same of operations that torch differentiates any number of times."""
    g = ring.geometry
    k, v = moved(ring.keys, k, v)
    rule = Rule(scale, g.reach(0) if g.causal else None)
    return composed(q, ring.repeated(k), ring.repeated(v), masks, rule)[0]
