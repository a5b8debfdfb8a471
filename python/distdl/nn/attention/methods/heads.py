"""Attention that exchanges tokens for heads: each worker computes some heads of all tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from distdl import operators
from distdl.nn.attention.kernels.flash import (
    Gradients,
    InputGrads,
    Partial,
    gradients,
    mask_gradients,
    partial_attention,
)
from distdl.nn.attention.kernels.local import attend
from distdl.nn.attention.kernels.operands import AttentionCall, MaskRule, Masks, Operands
from distdl.nn.attention.methods.exchanges import Exchange
from distdl.nn.attention.methods.geometry import FEW, BlockSizes, Geometry
from distdl.operators import Operator
from distdl.partitions.boxes import block_at, block_intervals


class Heads:
    """Each worker receives all tokens of some heads, and returns the results."""

    def __init__(self, geometry: Geometry, features: tuple[int, int]) -> None:
        self.geometry, self.features = geometry, features
        g, (e, f) = geometry, features
        wanted, keys, self.heads = g.for_heads()
        elements = math.prod(sum(sizes) for sizes in g.query[:-1]) * (e + e + f)
        # Joining q, k and v in one message copies them.
        self._in_one_message = list(g.query[:-1]) == list(g.key[:-1]) and elements < FEW
        if self._in_one_message:
            self._joint = Exchange(lambda n: g.exchange(g.heads_grid, [*wanted, [(0, n)]]), (2 * e + f, 2 * e + 3 * f))
        else:
            self._queries = Exchange(lambda n: g.exchange(g.heads_grid, [*wanted, [(0, n)]]), (e,))
            self._keys = Exchange(lambda n: g.exchange(g.heads_grid, [*keys, [(0, n)]]), (e, f))
        back = [block_intervals(sizes) for sizes in g.query[:-1]]
        exchange = operators.interval_exchange
        self._back = Exchange(lambda n: exchange(g.layer, g.heads_grid, g.grid, [*back, [(0, n)]]), (f,))

    @property
    def _place(self) -> int:
        return self.geometry.heads_grid.place[-3]

    def for_mask(self, sizes: BlockSizes) -> Operator | None:
        """The exchange of a mask in blocks of these sizes; None for a mask without heads and rows."""
        g = self.geometry
        has_rows = sizes[-2] == g.query[-2]
        has_heads = sizes[-3] == g.query[-3] and max(sizes[-3]) > 1
        if not has_rows and not has_heads:
            return None
        wanted = [block_intervals(along) for along in sizes[:-3]]
        if has_heads:
            wanted.append(self.heads)
        else:
            wanted.append([(h, h + 1) for h in range(len(sizes[-3])) for _ in g.query[-2]])
        wanted.append([(0, sum(sizes[-2]) if has_rows else 1)])
        return g.exchange(g.heads_grid, [*wanted, [(0, sizes[-1][0])]])

    def recorded(self, call: AttentionCall, masks: Masks) -> torch.Tensor:
        """Results by operations that autograd records, with masks for this worker's heads."""
        g = self.geometry
        e, f = self.features
        if self._in_one_message:
            q, k, v = self._joint.recorded(torch.cat([call.q, call.k, call.v], -1)).split([e, e, f], -1)
        else:
            q, k, v = self._queries.recorded(call.q), self._keys.recorded(call.k), self._keys.recorded(call.v)
        k, v = self._repeat(k), self._repeat(v)
        start, stop = self.heads[self._place]
        if call.extra_keys is not None:
            first = block_intervals(g.query[-3])[g.grid.place[-3]][0]
            extra = (x[start - first : stop - first] for x in call.extra_keys)
            k, v = map(with_extra_keys, (k, v), extra)
        weights = None
        if call.dropout is not None:
            batch = block_at(g.query[:-3], g.grid.place)
            rows, keys = sum(g.query[-2]), k.shape[-2]
            whole = [*(sum(sizes) for sizes in g.query[:-2]), rows, keys]
            weights = call.dropout(whole, [*batch, (start, stop), (0, rows), (0, keys)])
        operands = Operands(q, k, v, masks, self._rule(call.factor))
        return self._back.recorded(attend(operands, weights, call.has_tangent))

    def forward(self, blocks: Operands) -> Partial:
        """The results of this worker's queries, and the statistics of all queries of its heads."""
        q, k, v, *_ = self._fetch(blocks)
        rule = self._rule(blocks.rule.scale)
        result = partial_attention(Operands(q, self._repeat(k), self._repeat(v), blocks.masks, rule))
        return Partial(self._back(result.output), *result[1:])

    def backward(self, gradient: torch.Tensor, blocks: Operands, result: Partial, wanted: Sequence[bool]) -> InputGrads:
        q, k, v, output, gradient = self._fetch(blocks, result.output, gradient)
        x = Operands(q, self._repeat(k), self._repeat(v), blocks.masks, self._rule(blocks.rule.scale))
        grads = gradients(gradient, x, Partial(output, *result[1:]), any(wanted))
        grads = Gradients(grads.q, self._sum_heads(grads.k, k), self._sum_heads(grads.v, v), grads.scores)
        of_masks = mask_gradients(grads.scores, blocks.masks, wanted)
        del q, k, v, output, gradient, x  # free memory for the exchange below
        return *self._return_gradients(grads, blocks), of_masks

    def _fetch(self, blocks: Operands, *outputs: torch.Tensor) -> Sequence[torch.Tensor]:
        if self._in_one_message:
            tensors = [*blocks[:3], *outputs]
            return self._joint(torch.cat(tensors, -1)).split([x.shape[-1] for x in tensors], -1)
        q, k, v = self._queries(blocks.q), self._keys(blocks.k), self._keys(blocks.v)
        return [q, k, v, *(self._back.adjoint(x, q) for x in outputs)]

    def _return_gradients(self, grads: Gradients, blocks: Operands) -> Sequence[torch.Tensor]:
        e, f = self.features
        if self._in_one_message:
            return self._joint.adjoint(torch.cat(grads[:3], -1), blocks.q).split([e, e, f], -1)
        q = self._queries.adjoint(grads.q, blocks.q)
        return [q, *(self._keys.adjoint(x, blocks.k) for x in (grads.k, grads.v))]

    def _rule(self, scale: float) -> MaskRule:
        return MaskRule(scale, 0 if self.geometry.causal else None)

    def _repeat(self, x: torch.Tensor) -> torch.Tensor:
        return self.geometry.repeat_heads(x, self._place, by_heads=True)

    def _sum_heads(self, gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return self.geometry.sum_heads(gradient, like, self._place, by_heads=True)


def with_extra_keys(x: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    """Append extra keys or values of shape (H, n, features)."""
    return torch.cat([x, extra.expand(*x.shape[:-2], *extra.shape[-2:])], -2)
