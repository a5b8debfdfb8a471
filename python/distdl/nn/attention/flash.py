"""Attention and its gradients by torch's kernel, which keeps no scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

from distdl.nn.attention.operands import Masks, Operands
from distdl.nn.attention.scores import added, additive, without_autocast
from distdl.nn.precision import wide

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_LARGE = 256.0  # a logarithm of a sum that is larger has lost too much of the sum to rounding


class Found(NamedTuple):
    """Partial attention: results of queries over some of their keys.

    Attributes:
        output: over these keys, (*, H, L, F).
        largest: the largest score, (*, H, L); -inf for a query that looks at no key.
        total: the sum of the exponentials of the scores less the largest, (*, H, L). Beside a score of -1e9 the
            logarithm of the sum would be lost.
    """

    output: torch.Tensor
    largest: torch.Tensor
    total: torch.Tensor


class Gradients(NamedTuple):
    """Gradients of queries, keys and values, and where they are asked for, of the scores."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor | None = None


Derived: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor | None]]
"""The gradients of queries, keys, values, and of each mask, None where it is not wanted."""


def flash(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the logarithm of the sum of the exponentials of the scores: -inf where a query sees no key."""
    features = max(x.q.shape[-1], x.v.shape[-1])
    shape = (*x.q.shape[:-1], x.v.shape[-1])
    if _is_empty(x):
        return x.q.new_zeros(shape), wide(x.q).new_full(shape[:-1], -torch.inf)
    mask, causal = _mask_for(x)
    arguments = [_padded(one, features) for one in x[:3]]
    output, sums = _flash(*arguments, 0.0, causal, attn_mask=mask, scale=x.rule.scale)
    if mask is not None:  # the kernel gives 0 for them
        sums = sums.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
    return output[..., : shape[-1]].reshape(shape), sums.reshape(shape[:-1])


def attended(x: Operands) -> Found:
    """Attention of the queries over these keys."""
    output, logarithms = flash(x)
    if not _is_large(logarithms):
        return Found(output, logarithms, torch.ones_like(logarithms))
    return _attended_by_scores(x)


@without_autocast
def _attended_by_scores(x: Operands) -> Found:
    """The same, from scores that are kept for the time of the call."""
    scores = added(x)
    largest = scores.amax(-1)
    weights = (scores - finite(largest).unsqueeze(-1)).exp()
    total = weights.sum(-1)
    output = (weights @ wide(x.v)) / nonzero(total).unsqueeze(-1)
    return Found(output.to(x.q.dtype), largest, total)


def gradients(gradient: torch.Tensor, x: Operands, found: Found, of_scores: bool = False) -> Gradients:
    """The gradients from that of the output, where `found` may be that of more keys than these."""
    if _is_empty(x):
        q, k, v = (torch.zeros_like(one) for one in x[:3])
        return Gradients(q, k, v, wide(x.q).new_zeros(*x.q.shape[:-1], x.k.shape[-2]) if of_scores else None)
    logarithms = found.largest + found.total.log()
    if of_scores or _is_large(logarithms):
        return _by_scores(x, gradient, found)
    features = max(x.q.shape[-1], x.v.shape[-1])
    mask, causal = _mask_for(x)
    arguments = [_padded(one, features) for one in (gradient, *x[:3], found.output)]
    # The exponential of a score minus inf is 0: what no key belongs to has no gradient.
    sums = logarithms.masked_fill(logarithms == -torch.inf, torch.inf).reshape(arguments[1].shape[:-1])
    results = _flash_backward(*arguments, sums, 0.0, causal, attn_mask=mask, scale=x.rule.scale)
    q, k, v = (one[..., : of.shape[-1]].reshape(of.shape) for one, of in zip(results, x[:3], strict=True))
    return Gradients(q, k, v)


@without_autocast
def _by_scores(x: Operands, gradient: torch.Tensor, found: Found) -> Gradients:
    """The gradients, from scores that are kept for the time of the call."""
    dtype, gradient, output = x.q.dtype, wide(gradient), wide(found.output)
    weights = (added(x) - finite(found.largest).unsqueeze(-1)).exp()
    weights = weights / nonzero(found.total).unsqueeze(-1)
    of_values = weights.transpose(-2, -1) @ gradient
    of_weights = gradient @ wide(x.v).transpose(-2, -1)
    of_scores = weights * (of_weights - (gradient * output).sum(-1, keepdim=True))
    of_queries = of_scores @ wide(x.k) * x.rule.scale
    of_keys = of_scores.transpose(-2, -1) @ wide(x.q) * x.rule.scale
    return Gradients(of_queries.to(dtype), of_keys.to(dtype), of_values.to(dtype), of_scores)


def of_masks(scores: torch.Tensor | None, masks: Masks, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    """The gradients of masks from that of the scores."""
    return [
        scores.sum_to_size(mask.shape) if one and scores is not None else None
        for mask, one in zip(masks, wanted, strict=True)
    ]


def merged(found: Found, more: Found) -> Found:
    """Merge partial attention over two sets of keys. The first output is overwritten."""
    largest = torch.maximum(found.largest, more.largest)
    mine = found.total * (found.largest - finite(largest)).exp()
    others = more.total * (more.largest - finite(largest)).exp()
    total = mine + others
    output = found.output.mul_((mine / nonzero(total)).unsqueeze(-1))
    output += wide(more.output) * (others / nonzero(total)).unsqueeze(-1)
    return Found(output, largest, total)


def finite(largest: torch.Tensor) -> torch.Tensor:
    """The largest scores, 0 for queries that look at no key: their weights become 0."""
    return largest.masked_fill(largest == -torch.inf, 0.0)


def nonzero(total: torch.Tensor) -> torch.Tensor:
    """A divisor: 1 where a sum is 0, so that a query that looks at no key keeps weights of 0."""
    return total.masked_fill(total == 0.0, 1.0)


def _is_large(logarithms: torch.Tensor) -> bool:
    """Whether logarithms of sums do not tell the sums, which large scores leave no digits for."""
    return bool(((logarithms.abs() > _LARGE) & logarithms.isfinite()).any())


def _is_empty(x: Operands) -> bool:
    """Whether there is nothing to compute. The kernel ends the process in a division by zero."""
    features = max(x.q.shape[-1], x.v.shape[-1])
    return x.q.shape[:-1].numel() == 0 or x.k.shape[-2] == 0 or features == 0


def _four(x: torch.Tensor) -> torch.Tensor:
    """The same with one leading dimension in front of heads, rows and features."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _padded(x: torch.Tensor, features: int) -> torch.Tensor:
    """The kernel takes as many features in keys as in values, and does not look at the stride between them.

    Further zeros in either change nothing.
    """
    x = _four(x)
    if x.shape[-1] != features:  # the result is in the memory format of x
        x = torch.nn.functional.pad(x, (0, features - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()


def _mask_for(x: Operands) -> tuple[torch.Tensor | None, bool]:
    """The mask of the kernel, and whether it masks causally by itself."""
    if x.rule.reach == 0 and not x.masks:
        return None, True
    mask = additive(x)
    if mask is None:
        return None, False
    mask = mask.reshape(*(1,) * (x.q.dim() - mask.dim()), *mask.shape)
    leading = mask.shape[:-3] if math.prod(mask.shape[:-3]) == 1 else x.q.shape[:-3]
    return _four(mask.expand(*leading, *mask.shape[-3:-1], x.k.shape[-2])), False
