"""Attention of queries to keys and values, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import ClassVar

import torch

from distdl.modules.graph import empty_result
from distdl.nn.attention.kernels.dropout import LayerWithDropout, Method
from distdl.nn.attention.kernels.operands import AttentionCall
from distdl.nn.attention.masks import check_columns, masks_of_workers
from distdl.nn.attention.methods.choice import AttentionPlan
from distdl.nn.attention.methods.geometry import Geometry
from distdl.nn.base.option_types import PlainNumber, Probability, with_options
from distdl.nn.base.precision import FLOATING, lowered
from distdl.nn.base.voted_layer import Described

__all__ = ["DistributedScaledDotProductAttention"]


@with_options
class DistributedScaledDotProductAttention(LayerWithDropout):
    r"""Computes :math:`\mathrm{softmax}(q k^T \cdot scale + mask)\, v` where q, k and v are partitioned.

    Args:
        P_x: the partition of query, key and value: ``[*batch, heads, sequence, 1]`` or ``[sequence, 1]``. Keys and
            values may have other blocks of heads and sequence than the query.
        dropout_p, is_causal, scale, enable_gqa: as in ``torch.nn.functional.scaled_dot_product_attention``. Weights are
            dropped in training only. is_causal: query i attends to the keys up to i.
        method: how workers along the sequence share the work.

            - "heads": an exchange gives each worker some heads of all tokens; another returns the results. Workers
              without a head idle.
            - "ring": each worker keeps its queries; keys and values arrive block after block, in as many messages as
              workers. With is_causal and many tokens, queries travel, too: each worker computes an early and a late
              chunk, to balance the work.
            - None: "ring" if there are fewer heads than workers along the sequence, or a mask has rows, which a ring
              does not move; else "heads".

    Shape:
        query ``(*batch, H, L, E)``, key ``(*batch, H, S, E)``, value ``(*batch, H, S, F)`` in blocks; zero volume on
        all other ranks. With enable_gqa, keys and values may have fewer heads. attn_mask, boolean (True: the key
        counts) or added to the scores, has the rows of this worker's queries and all S keys; broadcastable to
        ``(*batch, H, L, S)`` of its block. The result is the block ``(*batch, H, L, F)`` of this worker's queries, 0
        for queries without a key.

    Raises:
        ValueError: on all ranks, if the tensors do not match, a mask is passed with is_causal, or an option is invalid.

    For the backward pass a worker keeps only its blocks of query, key, value and result, and fetches other blocks
    again, in groups of heads if they are large. With dropout, or for second derivatives, it keeps all scores of its
    queries. A backward pass without dropout takes one vote.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html;
    S. A. Jacobs et al., "DeepSpeed Ulysses" (2023); H. Liu et al., "Ring Attention with Blockwise Transformers" (2023).
    """

    dropout_p: Probability = 0.0
    is_causal: bool = False
    scale: PlainNumber | None = None
    enable_gqa: bool = False
    _: KW_ONLY
    method: Method = None
    tensors: ClassVar[tuple[str, ...]] = ("query", "key", "value", "attn_mask")
    optional: ClassVar[tuple[str, ...]] = ("attn_mask",)

    def check_options(self) -> None:
        shape = self.grid.shape
        fits = len(shape) > 1 and shape[-1] == 1
        self.check_shape(fits, "it must be [*batch, heads, sequence, 1]: features are not split")
        self._grid = self.grid.reshaped((1, *shape)) if len(shape) == 2 else self.grid

    def probabilities(self) -> tuple[float, ...]:
        return (self.dropout_p,)

    def set_up(self) -> None:
        tensors = [self.structure(self.grid, i) for i in range(3)]
        self._check(tensors)
        query, key, value = (self.blocks(self.grid, i) for i in range(3))
        if query[:-3] != key[:-3] or key[:-1] != value[:-1] or query[-1] != key[-1]:
            raise ValueError(
                f"{type(self).__name__}: the query is in blocks of {query}, the key of {key} and the value of {value} "
                "by dimension; they must have the same batch, key and value the same heads and tokens, query and key "
                "the same features"
            )
        if len(query) == 2:
            query, key = [[1], *query], [[1], *key]
        heads, key_heads = sum(query[-3]), sum(key[-3])
        if self.enable_gqa and len(tensors[0][0][0]) > 2:
            if heads != key_heads and (key_heads == 0 or heads % key_heads):
                raise ValueError(
                    f"{type(self).__name__}: the query has {heads} heads, the key {key_heads}; with enable_gqa=True "
                    "the first must be a multiple of the second"
                )
        elif query[-3] != key[-3]:
            raise ValueError(
                f"{type(self).__name__}: the query has blocks of {query[-3]} heads, the key of {key[-3]}; they must be "
                "the same without enable_gqa=True"
            )
        masks = self._masks(query, sum(key[-2]))
        geometry = Geometry(type(self).__name__, self._grid, query, key, self.is_causal)
        self._plan = AttentionPlan(geometry, value[-1][0], masks, self.method)

    def _check(self, tensors: Sequence[Sequence[Described]]) -> None:
        first = tensors[0][0]
        for name, described in zip(self.tensors, tensors, strict=False):
            for worker, (shape, dtype) in enumerate(described):
                why = ""
                if len(shape) != self.grid.dim:
                    why = f"it must have the {self.grid.dim} dimensions of P_x"
                elif dtype not in FLOATING:
                    why = "it must be of floating point"
                elif dtype != first[1] and (self.autocast is None or torch.double in (dtype, first[1])):
                    why = f"the query of worker 0 is of {first[1]}; all must be of the same dtype"
                if why:
                    raise ValueError(
                        f"{type(self).__name__}: worker {worker} of P_x has a {name} of shape {shape} ({dtype}); {why}"
                    )

    def _masks(self, query: list[list[int]], keys: int) -> list[list[list[int]]]:
        """The shapes of the workers' masks, by mask, with as many dimensions as the query."""
        name = type(self).__name__
        masks = masks_of_workers(name, "attn_mask", self.structure(self.grid, 3), self.grid)
        if masks is None:
            return []
        if self.is_causal:
            raise ValueError(f"{name}: attn_mask is passed with is_causal=True; it takes only one of them")
        dtypes = (torch.bool, *FLOATING)
        shapes = []
        for worker, (shape, dtype) in enumerate(masks):
            extents = [1] * (len(query) - len(shape)) + shape
            place = self._grid.index(worker)
            block = [sizes[at] for sizes, at in zip(query[:-1], place, strict=False)]
            fits = len(shape) <= self.grid.dim and dtype in dtypes
            if not fits or any(n not in (1, m) for n, m in zip(extents, [*block, keys], strict=True)):
                raise ValueError(
                    f"{name}: worker {worker} of P_x has an attn_mask of shape {shape} ({dtype}); it must be boolean "
                    f"or of floating point, and broadcastable to {[*block, keys]}: its block of the query, and all keys"
                )
            shapes.append(extents)
        check_columns(name, "attn_mask", shapes, self._grid)
        return [shapes]

    def compute(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not self.grid.active:
            return empty_result(query)
        query, key, value = (lowered(x, self.autocast) for x in (query, key, value))
        masks = []
        dims = max(3, query.dim())
        if attn_mask is not None:
            masks = [attn_mask.reshape(*(1,) * (dims - attn_mask.dim()), *attn_mask.shape)]
        q, k, v = (x.reshape(*(1,) * (dims - x.dim()), *x.shape) for x in (query, key, value))
        dropout = self.dropout_mask(self.dropout_p, 0, q)
        call = AttentionCall(q, k, v, masks, self.scale, dropout, None, self.is_differentiated, self.has_tangent)
        result = self._plan(call)
        return result.reshape(*query.shape[:-1], value.shape[-1])
