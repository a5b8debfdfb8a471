"""Attention where tokens are exchanged for heads: each worker computes some heads of all tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from distdl import operators
from distdl.nn.attention.flash import Derived, Found, Gradients, attended, gradients, of_masks
from distdl.nn.attention.geometry import FEW, Geometry, Sizes, intervals_of
from distdl.nn.attention.kernel import attend
from distdl.nn.attention.moves import Move
from distdl.nn.attention.operands import Call, Masks, Operands, Rule
from distdl.operators import Operator


class Heads:
    """Each worker receives all tokens of some of its line's heads, and the results return to their tokens.

    Args:
        geometry: the blocks.
        features: of keys, and of values.
    """

    def __init__(self, geometry: Geometry, features: tuple[int, int]) -> None:
        self.geometry, self.features = geometry, features
        g, (e, f) = geometry, features
        wanted, keys, self.of = g.for_heads()
        elements = math.prod(sum(sizes) for sizes in g.query[:-1]) * (e + e + f)
        # One message for all takes its memory once more.
        self._together = list(g.query[:-1]) == list(g.key[:-1]) and elements < FEW
        if self._together:
            self._all = Move(lambda n: g.exchange(g.heads_grid, [*wanted, [(0, n)]]), (2 * e + f, 2 * e + 3 * f))
        else:
            self._queries = Move(lambda n: g.exchange(g.heads_grid, [*wanted, [(0, n)]]), (e,))
            self._keys = Move(lambda n: g.exchange(g.heads_grid, [*keys, [(0, n)]]), (e, f))
        back = [intervals_of(sizes) for sizes in g.query[:-1]]
        self._back = Move(lambda n: operators.interval_exchange(g.layer, g.heads_grid, g.grid, [*back, [(0, n)]]), (f,))

    @property
    def _place(self) -> int:
        return self.geometry.heads_grid.place[-3]

    def for_mask(self, sizes: Sizes) -> Operator | None:
        """The exchange of a mask in blocks of these sizes; None for one that is the same for all heads and queries."""
        g = self.geometry
        has_rows = sizes[-2] == g.query[-2]
        has_heads = sizes[-3] == g.query[-3] and max(sizes[-3]) > 1
        if not has_rows and not has_heads:
            return None
        wanted = [intervals_of(along) for along in sizes[:-3]]
        if has_heads:
            wanted.append(self.of)
        else:
            wanted.append([(h, h + 1) for h in range(len(sizes[-3])) for _ in g.query[-2]])
        wanted.append([(0, sum(sizes[-2]) if has_rows else 1)])
        return g.exchange(g.heads_grid, [*wanted, [(0, sizes[-1][0])]])

    def recorded(self, call: Call, masks: Masks) -> torch.Tensor:
        """The results of operations that autograd records, with masks for this worker's heads."""
        g = self.geometry
        e, f = self.features
        if self._together:
            q, k, v = self._all.recorded(torch.cat([call.q, call.k, call.v], -1)).split([e, e, f], -1)
        else:
            q, k, v = self._queries.recorded(call.q), self._keys.recorded(call.k), self._keys.recorded(call.v)
        k, v = self._repeated(k), self._repeated(v)
        start, stop = self.of[self._place]
        if call.further is not None:
            first = intervals_of(g.query[-3])[g.grid.place[-3]][0]
            k, v = (joined(x, one[start - first : stop - first]) for x, one in zip((k, v), call.further, strict=True))
        weights = None
        if call.kept is not None:
            batch = [intervals_of(sizes)[at] for sizes, at in zip(g.query[:-3], g.grid.place, strict=False)]
            rows, keys = sum(g.query[-2]), k.shape[-2]
            whole = [*(sum(sizes) for sizes in g.query[:-2]), rows, keys]
            weights = call.kept(whole, [*batch, (start, stop), (0, rows), (0, keys)])
        operands = Operands(q, k, v, masks, self._rule(call.factor))
        return self._back.recorded(attend(operands, weights, call.has_tangent))

    def forward(self, own: Operands) -> Found:
        """The results of this worker's queries, and what is known of all queries of its heads."""
        q, k, v, *_ = self._arrived(own)
        found = attended(Operands(q, self._repeated(k), self._repeated(v), own.masks, self._rule(own.rule.scale)))
        return Found(self._back(found.output), *found[1:])

    def backward(self, gradient: torch.Tensor, own: Operands, found: Found, wanted: Sequence[bool]) -> Derived:
        """The gradients of this worker's blocks, and of the masks that are wanted."""
        q, k, v, output, gradient = self._arrived(own, found.output, gradient)
        x = Operands(q, self._repeated(k), self._repeated(v), own.masks, self._rule(own.rule.scale))
        of = gradients(gradient, x, Found(output, *found[1:]), any(wanted))
        of = Gradients(of.q, self._summed(of.k, k), self._summed(of.v, v), of.scores)
        found_masks = of_masks(of.scores, own.masks, wanted)
        del q, k, v, output, gradient, x  # for what follows takes memory, too
        return *self._returned(of, own), found_masks

    def _arrived(self, own: Operands, *outputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """Queries, keys, values and what is like outputs, of all tokens and this worker's heads."""
        if self._together:
            tensors = [*own[:3], *outputs]
            return self._all(torch.cat(tensors, -1)).split([x.shape[-1] for x in tensors], -1)
        q, k, v = self._queries(own.q), self._keys(own.k), self._keys(own.v)
        return [q, k, v, *(self._back.adjoint(x, q) for x in outputs)]

    def _returned(self, of: Gradients, own: Operands) -> Sequence[torch.Tensor]:
        """The gradients of this worker's blocks."""
        e, f = self.features
        if self._together:
            return self._all.adjoint(torch.cat(of[:3], -1), own.q).split([e, e, f], -1)
        return [self._queries.adjoint(of.q, own.q), self._keys.adjoint(of.k, own.k), self._keys.adjoint(of.v, own.k)]

    def _rule(self, scale: float) -> Rule:
        return Rule(scale, 0 if self.geometry.causal else None)

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        """Keys or values for the heads of this worker's queries."""
        return self.geometry.for_queries(x, self._place, by_heads=True)

    def _summed(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The adjoint of `_repeated`."""
        return self.geometry.of_keys(gradient, like, self._place, by_heads=True)


def joined(x: torch.Tensor, further: torch.Tensor) -> torch.Tensor:
    """Keys or values, and further ones of (H, n, features) behind them."""
    return torch.cat([x, further.expand(*x.shape[:-2], *further.shape[-2:])], -2)
