"""Attention of several heads, recorded with the heads as a dimension, along which it can be split."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from types import SimpleNamespace

import torch
import torch.nn.functional as F

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def attention_by_heads(
    is_batch_first: bool, in_memory_order: bool, *args: object, **kwargs: object
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """``torch.nn.functional.multi_head_attention_forward``; None for options and shapes that it leaves to torch.

    Args:
        is_batch_first: whether the inputs are transposed. Then the computation is that of the tensors before.
        in_memory_order: whether the result is in memory as torch's is, tokens first.
    """
    call = _SIGNATURE.bind(*args, **kwargs)
    call.apply_defaults()
    of = SimpleNamespace(**call.arguments)
    if not _is_usual(of):
        return None
    is_batched = of.query.dim() == 3
    same: dict[int, torch.Tensor] = {}
    for x in (of.query, of.key, of.value):  # mostly the same tensor
        if id(x) not in same:
            same[id(x)] = x.unsqueeze(0) if not is_batched else x.transpose(0, 1) if is_batch_first else x
    tokens_first = is_batched and not is_batch_first
    q, k, v = (
        x.unflatten(-1, (of.num_heads, -1)).permute((1, 2, 0, 3) if tokens_first else (0, 2, 1, 3))
        for x in _projected([same[id(getattr(of, name))] for name in ("query", "key", "value")], of)
    )
    mask, is_causal = _mask(q, k.shape[-2], of)
    p = of.dropout_p if of.training else 0.0
    weights = None
    if of.need_weights:
        scores = q * math.sqrt(1.0 / q.shape[-1]) @ k.mT
        weights = (scores if mask is None else scores + mask).softmax(-1)
        weights = F.dropout(weights, p) if p > 0.0 else weights
        y = weights @ v
        weights = weights.mean(1) if of.average_attn_weights else weights
    else:
        y = F.scaled_dot_product_attention(q, k, v, mask, p, is_causal)
    y = y.permute((2, 0, 1, 3) if tokens_first else (0, 2, 1, 3)).flatten(2)
    y = F.linear(y, of.out_proj_weight, of.out_proj_bias)
    if not is_batched:
        return y.squeeze(0), None if weights is None else weights.squeeze(0)
    y = y if tokens_first else y.transpose(0, 1)
    return y.contiguous() if in_memory_order else y, weights


def _is_usual(of: SimpleNamespace) -> bool:
    query, key, value, heads = of.query, of.key, of.value, of.num_heads
    others = (of.bias_k, of.bias_v, of.static_k, of.static_v)
    if any(other is not None for other in others) or of.add_zero_attn:
        return False
    dims, features = query.dim(), query.shape[-1]
    fits = dims in (2, 3) and dims == key.dim() == value.dim() and features == of.embed_dim_to_check
    if not fits or features % heads or key.shape[:-1] != value.shape[:-1] or query.shape[1:-1] != key.shape[1:-1]:
        return False
    if not of.use_separate_proj_weight and not features == key.shape[-1] == value.shape[-1]:
        return False
    batch = query.shape[1] if dims == 3 else 1
    shapes = (query.shape[0], key.shape[0])
    mask, padding = of.attn_mask, of.key_padding_mask
    if mask is not None and mask.shape not in (shapes, (batch * heads, *shapes)):
        return False
    padding_shape = (batch, key.shape[0])[3 - dims :]
    return (padding is None or padding.shape == padding_shape) and not (of.is_causal and mask is None)


def _projected(inputs: Sequence[torch.Tensor], of: SimpleNamespace) -> list[torch.Tensor]:
    """Queries, keys and values."""
    weight, bias, is_packed = of.in_proj_weight, of.in_proj_bias, not of.use_separate_proj_weight
    if is_packed and inputs[0] is inputs[1] is inputs[2]:
        return list(F.linear(inputs[0], weight, bias).chunk(3, -1))
    weights = weight.chunk(3) if is_packed else [getattr(of, f"{name}_proj_weight") for name in "qkv"]
    biases = [None] * 3 if bias is None else bias.chunk(3)
    return [F.linear(*each) for each in zip(inputs, weights, biases, strict=True)]


def _mask(q: torch.Tensor, keys: int, of: SimpleNamespace) -> tuple[torch.Tensor | None, bool]:
    """A tensor that is added to the scores, or None; and whether attention is causal instead."""
    mask, padding, is_causal = of.attn_mask, of.key_padding_mask, bool(of.is_causal)
    if is_causal and padding is None and not of.need_weights:
        return None, True
    batch, heads = q.shape[:2]
    added = []
    if mask is not None:
        mask = _canonical(mask, q.dtype)
        added.append(mask if mask.dim() == 2 else mask.view(batch, heads, -1, keys))
    if padding is not None:
        added.append(_canonical(padding, q.dtype).view(batch, 1, 1, keys))
    return (sum(added[1:], added[0]) if added else None), False


def _canonical(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask as numbers to add."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf) if mask.dtype == torch.bool else mask
