"""Attention where each worker keeps its queries, and the keys come block after block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import torch

from distdl.nn.attention.geometry import Geometry, moved
from distdl.nn.attention.kernel import (
    Masks,
    Rule,
    apart,
    apart_backward,
    composed,
    finite,
    flash_backward,
    is_large,
    recomputed,
)
from distdl.nn.precision import wide
from distdl.operators import Operator, Started

Context: TypeAlias = torch.autograd.function.FunctionCtx
Found: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # output, largest score, and sum, as of `apart`


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

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        masks: Masks,
        scale: float,
        differentiated: bool = False,
    ) -> torch.Tensor:
        """The results of this worker's queries.

        Args:
            q, k, v, masks: this worker's blocks.
            scale: of the scores.
            differentiated: whether any worker's tensors require gradients: then all take part in the backward pass.
        """
        if differentiated:
            q, k, v = (x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v))
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
            rule = Rule(scale, g.reach(self._columns[t][0]) if g.causal else None)
            yield Block(here, [self.part(mask, t) for mask in masks], rule, fetch)
            del here

    def part(self, mask: torch.Tensor, t: int) -> torch.Tensor:
        """What a mask says of the keys of block t."""
        start, stop = self._columns[t]
        return mask if mask.shape[-1] == 1 else mask[..., start:stop]

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
        found: Found | None = None
        for block in ring.blocks(k, v, masks, scale):
            keys, values = map(ring.repeated, block.here)
            more = apart(q, keys, values, block.masks, block.rule)
            del keys, values
            found = (wide(more[0]), *more[1:]) if found is None else _merged(found, more)
        assert found is not None
        output = found[0].to(q.dtype)
        ctx.save_for_backward(q, k, v, output, *found[1:], *masks)
        ctx.ring, ctx.scale = ring, scale
        return output

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, output, largest, sums, *masks = ctx.saved_tensors
        ring, wanted = ctx.ring, ctx.needs_input_grad[5:]
        if torch.is_grad_enabled():  # for second derivatives, which the kernel does not have
            return _recomputed(ctx, (q, k, v), masks, gradients[0])
        logarithms = largest + sums.log()
        by_kernel = not any(wanted) and not is_large(logarithms)
        totals: list[torch.Tensor] = []
        of_masks = [torch.zeros_like(wide(mask)) if one else None for mask, one in zip(masks, wanted, strict=True)]
        for t, block in enumerate(ring.blocks(k, v, masks, ctx.scale)):
            keys, values = map(ring.repeated, block.here)
            given, rules = (gradients[0], q, keys, values, output), (block.masks, block.rule)
            if by_kernel:
                of_block = list(flash_backward(*given, logarithms, *rules))
            else:
                *of_block, of_scores = apart_backward(*given, largest, sums, *rules)
                for mine, seen in zip(of_masks, block.masks, strict=True):
                    if mine is not None:
                        ring.part(mine, t).add_(of_scores.sum_to_size(seen.shape))
                del of_scores
            del keys, values, given
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
        found = (total.to(x.dtype) for total, x in zip(totals, (q, k, v), strict=True))
        return (
            *found,
            None,
            None,
            *(None if one is None else one.to(mask.dtype) for one, mask in zip(of_masks, masks, strict=True)),
        )


def _merged(found: Found, more: Found) -> Found:
    """The results over two sets of keys as those over both; what was found is overwritten.

    The largest score is kept apart from the sum: beside a score of -1e9 the logarithm of the sum would be lost.
    """
    largest = torch.maximum(found[1], more[1])
    mine = found[2] * (found[1] - finite(largest)).exp()
    others = more[2] * (more[1] - finite(largest)).exp()
    sums = mine + others
    divisor = sums.masked_fill(sums == 0.0, 1.0)  # a query that looks at no key keeps weights of 0
    total = found[0].mul_((mine / divisor).unsqueeze(-1))
    total += wide(more[0]) * (others / divisor).unsqueeze(-1)
    return total, largest, sums


def _recomputed(
    ctx: Context, inputs: tuple[torch.Tensor, ...], masks: list[torch.Tensor], gradient: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """The gradients, which can be differentiated further."""
    learned = [i for i, one in enumerate(ctx.needs_input_grad[5:]) if one]

    def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *own: torch.Tensor) -> torch.Tensor:
        used = list(masks)
        for i, mask in zip(learned, own, strict=True):
            used[i] = mask
        return _whole(q, k, v, ctx.ring, used, ctx.scale)

    found = recomputed(whole, (*inputs, *(masks[i] for i in learned)), gradient)
    of_masks = dict(zip(learned, found[3:], strict=True))
    return *found[:3], None, None, *(of_masks.get(i) for i in range(len(masks)))


def _whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: Ring, masks: Masks, scale: float) -> torch.Tensor:
    """The same of operations that torch differentiates any number of times."""
    g = ring.geometry
    k, v = moved(ring.keys, k, v)
    rule = Rule(scale, g.reach(0) if g.causal else None)
    return composed(q, ring.repeated(k), ring.repeated(v), masks, rule)[0]
