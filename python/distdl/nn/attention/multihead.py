"""Multi-head attention over a split batch and a split sequence."""

from __future__ import annotations

import inspect
from dataclasses import KW_ONLY
from typing import ClassVar

import torch

from distdl.nn.attention.kernels.dropout import LayerWithDropout, Method
from distdl.nn.attention.projections import ProjectedAttention
from distdl.nn.attention.tokens import check_partition, check_token_features
from distdl.nn.base.option_types import Count, Device, Dtype, HasBias, Integer, Probability, option, with_options
from distdl.nn.base.precision import as_under_autocast
from distdl.partitions.signatures import misfit

__all__ = ["DistributedMultiheadAttention"]


@with_options
class DistributedMultiheadAttention(LayerWithDropout):
    r"""Multi-head attention with projections: ``torch.nn.MultiheadAttention`` in blocks.

    Args:
        P_x: the partition of query, key and value: ``[batch, sequence, 1]`` with batch_first, ``[sequence, batch, 1]``
            without, or ``[sequence, 1]`` for unbatched tensors. Blocks of keys and queries may differ along the
            sequence.
        embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype: as in
            ``torch.nn.MultiheadAttention``.
        method: as in :class:`distdl.nn.DistributedScaledDotProductAttention`.

    Shape:
        query, key and value as in torch.nn, in blocks; zero volume on all other ranks. ``key_padding_mask``: the block
        (N, S) of this worker's keys. ``attn_mask``: this worker's rows of the queries, and all keys, (L, S) or (N *
        num_heads, L, S). Both are boolean (True: the key does not count) or added to the scores. The results are the
        block of this worker's queries, and with need_weights=True their weights for all keys, (N, L, S), or (N,
        num_heads, L, S) without average_attn_weights; None otherwise.

    ``is_causal=True``: query i attends to the keys up to i. It needs no attn_mask. As in torch.nn, an attn_mask is then
    used only with need_weights=True or a key_padding_mask.

    With need_weights=True, the default, a worker stores all scores of its queries.

    Attributes:
        in_proj_weight, in_proj_bias, q_proj_weight, k_proj_weight, v_proj_weight, bias_k, bias_v, out_proj.weight,
            out_proj.bias: as in torch.nn; all workers use the whole parameters. See :func:`distdl.parameter_layout`.

    Raises:
        ValueError: on all ranks, if options or tensors do not match, or P_x splits features.
    """

    embed_dim: Count
    num_heads: Count
    dropout: Probability = 0.0
    bias: HasBias = option(default=True)
    add_bias_kv: bool = False
    add_zero_attn: bool = False
    kdim: Integer | None = None
    vdim: Integer | None = None
    batch_first: bool = False
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    method: Method = None
    tensors: ClassVar[tuple[str, ...]] = ("query", "key", "value", "key_padding_mask", "attn_mask")
    optional: ClassVar[tuple[str, ...]] = ("key_padding_mask", "attn_mask")

    def check_options(self) -> None:
        name = type(self).__name__
        check_partition(self)
        if self.embed_dim % self.num_heads:
            raise ValueError(f"{name}: embed_dim={self.embed_dim} is not a multiple of num_heads={self.num_heads}")
        self.kdim = self.embed_dim if self.kdim is None else self.kdim
        self.vdim = self.embed_dim if self.vdim is None else self.vdim
        self._projected = ProjectedAttention(
            self,
            "",
            self.embed_dim,
            self.num_heads,
            bias=bool(self.passed["bias"]),
            add_bias_kv=bool(self.add_bias_kv),
            add_zero_attn=bool(self.add_zero_attn),
            kdim=self.kdim,
            vdim=self.vdim,
            batch_first=bool(self.batch_first),
            method=self.method,
        )

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        return {
            **super().options_of(module),
            "bias": module.in_proj_bias is not None,
            "add_bias_kv": module.bias_k is not None,
        }

    def forward(self, *args: object, **kwargs: object) -> object:
        """Attend, with the arguments of ``torch.nn.MultiheadAttention`` in the same order."""
        problem = misfit(self._arguments, args, kwargs)
        if problem is not None:
            self.refuse(TypeError(f"cannot be passed to forward(): {problem}"))
            raise problem
        arguments = inspect.signature(self._arguments).bind(*args, **kwargs)
        arguments.apply_defaults()
        names = (*self.tensors, "need_weights", "average_attn_weights", "is_causal")
        return super().forward(*(arguments.arguments[name] for name in names))

    @staticmethod
    def _arguments(
        query: object,
        key: object,
        value: object,
        key_padding_mask: object = None,
        need_weights: bool = True,
        attn_mask: object = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> None:
        """The order of torch.nn's arguments, where tensors do not come first."""

    def set_up(self) -> None:
        blocks = [self.blocks(self.grid, i) for i in range(3)]
        features = (self.embed_dim, self.kdim, self.vdim)
        for i, (name, expected) in enumerate(zip(self.tensors, features, strict=False)):
            check_token_features(self, name, self.structure(self.grid, i), expected, self.autocast)
        query, key, value = blocks
        batch = None if self.grid.dim == 2 else 0 if self.batch_first else 1
        if key[:-1] != value[:-1] or (batch is not None and query[batch] != key[batch]):
            raise ValueError(
                f"{type(self).__name__}: the query is in blocks of {query}, the key of {key} and the value of {value} "
                "by dimension; they must have the same batch, and key and value the same tokens"
            )
        need_weights, _, is_causal = self.others
        padding, mask = self.structure(self.grid, 3), self.structure(self.grid, 4)
        self._projected.set_up(query, key, padding, mask, bool(is_causal), bool(need_weights))

    def compute(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        attn_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self.grid.active:
            return self.without_part(query), query.clone() if need_weights else None
        y, weights = self._projected(
            self.parameters_by_name(),
            query,
            key,
            value,
            key_padding_mask,
            attn_mask,
            self.dropout_mask(self.dropout, 0, query),
            need_weights,
            self.is_differentiated,
            self.has_tangent,
        )
        if weights is not None:
            weights = as_under_autocast(weights, lambda x: x.softmax(-1), weights.dim())
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights.squeeze(0) if self.grid.dim == 2 else weights
        return y, weights
