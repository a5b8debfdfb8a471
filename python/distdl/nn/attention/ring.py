"""Attention where each worker keeps its queries, and the keys come block after block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

from distdl.nn.attention.geometry import Geometry, moved
from distdl.nn.attention.kernel import Masks, Rule, composed, flash, flash_backward, recomputed
from distdl.nn.precision import wide
from distdl.operators import Operator

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
        self._features = (g.key[-1][0], features)
        self._own = g.grid.place[-2] if g.grid.active else 0
        self._columns: list[tuple[int, int]] = []
        self._fetches: list[Operator | None] = []
        for t in range(places):
            columns = [self._seen(s, (s - t) % places) for s in range(places)]
            stays = t == 0 and g.has_its_heads()
            self._columns.append(g.columns[self._own] if stays else columns[self._own])
            self._fetches.append(None if stays else g.fetch(columns, sum(self._features)))

    def _seen(self, place: int, block: int) -> tuple[int, int]:
        """The columns of a block that queries at a place along the sequence look at."""
        start, stop = self.geometry.columns[block]
        if self.geometry.causal:
            stop = min(stop, self.geometry.rows[place][1])
        return (start, stop) if start < stop else (0, 0)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, scale: float) -> torch.Tensor:
        """The results of this worker's queries."""
        result: torch.Tensor = _Ring.apply(q, torch.cat([k, v], -1), self, scale, *masks)
        return result

    def blocks(
        self, both: torch.Tensor, masks: Masks, scale: float
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, Masks, Rule, Callable[[torch.Tensor], torch.Tensor]]]:
        """Each block: keys, values, masks, rule, and what brings a gradient of keys and values back to their worker."""
        g = self.geometry
        started = [None if fetch is None or t > 1 else fetch.start(both) for t, fetch in enumerate(self._fetches)]
        for t, fetch in enumerate(self._fetches):
            now = started[t]
            block = both if now is None else now.wait()
            if t > 0 and t + 1 < len(self._fetches):
                following = self._fetches[t + 1]
                started[t + 1] = None if following is None else following.start(both)
            k, v = block.split(self._features, -1)
            start, stop = self._columns[t]
            rule = Rule(scale, g.reach(start) if g.causal else None)
            seen = [mask if mask.shape[-1] == 1 else mask[..., start:stop] for mask in masks]
            yield k, v, seen, rule, self._returning(fetch, both)

    def _returning(self, fetch: Operator | None, both: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return (lambda gradient: gradient) if fetch is None else lambda gradient: fetch.adjoint(both, gradient)

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        """Keys or values for the heads of this worker's queries."""
        return self.geometry.for_queries(x, self.geometry.grid.place[-3])

    def summed(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The adjoint of `repeated`."""
        chosen = self.geometry.chosen(like, self.geometry.grid.place[-3])
        return gradient if chosen is None else torch.zeros_like(like).index_add_(-3, chosen, gradient)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, q: torch.Tensor, both: torch.Tensor, ring: Ring, scale: float, *masks: torch.Tensor
    ) -> torch.Tensor:
        total: torch.Tensor | None = None
        sums = wide(q)
        for k, v, seen, rule, _ in ring.blocks(both, masks, scale):
            output, more = flash(q, ring.repeated(k), ring.repeated(v), seen, rule)
            total, sums = (wide(output), more) if total is None else _merged(total, sums, output, more)
        assert total is not None
        output = total.to(q.dtype)
        ctx.save_for_backward(q, both, output, sums, *masks)
        ctx.ring, ctx.scale = ring, scale
        return output

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, both, output, sums, *masks = ctx.saved_tensors
        ring, nothing = ctx.ring, [None] * (2 + len(masks))
        if torch.is_grad_enabled():  # for second derivatives, which the kernel does not have
            dq, dboth = recomputed(lambda q, both: _whole(q, both, ring, masks, ctx.scale), (q, both), gradients[0])
            return dq, dboth, *nothing
        dq, dboth = torch.zeros_like(wide(q)), torch.zeros_like(wide(both))
        for k, v, seen, rule, returned in ring.blocks(both, masks, ctx.scale):
            of_q, *of_keys = flash_backward(
                gradients[0], q, ring.repeated(k), ring.repeated(v), output, sums, seen, rule
            )
            dq += of_q
            dk, dv = (ring.summed(one, like) for one, like in zip(of_keys, (k, v), strict=True))
            del of_q, of_keys
            dboth += returned(torch.cat([dk, dv], -1))
        return dq.to(q.dtype), dboth.to(both.dtype), *nothing


def _merged(
    total: torch.Tensor, sums: torch.Tensor, output: torch.Tensor, more: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results over two sets of keys as those over both. The first is overwritten."""
    both = torch.logaddexp(sums, more)
    largest = both.masked_fill(both == -torch.inf, 0.0)  # a query that looks at no key keeps weights of 0
    total *= (sums - largest).exp().unsqueeze(-1)
    total += wide(output) * (more - largest).exp().unsqueeze(-1)
    return total, both


def _whole(q: torch.Tensor, both: torch.Tensor, ring: Ring, masks: Masks, scale: float) -> torch.Tensor:
    """The same of operations that torch differentiates any number of times."""
    g = ring.geometry
    k, v = moved(ring.keys, *both.split(ring._features, -1))
    rule = Rule(scale, g.reach(0) if g.causal else None)
    return composed(q, ring.repeated(k), ring.repeated(v), masks, rule)[0]
