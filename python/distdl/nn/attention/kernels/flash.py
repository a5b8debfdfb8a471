"""Attention and its gradients by torch's kernel, which stores no scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

from distdl.nn.attention.kernels.operands import Masks, Operands
from distdl.nn.attention.kernels.scores import additive_mask, masked_scores, without_autocast
from distdl.nn.base.precision import wide
from distdl.torch_compat.operators import cpu_flash_attention, cpu_flash_attention_backward

_LARGE_LOGARITHM = 256.0  # a logarithm of a sum that is larger has lost too much of the sum to rounding


class Partial(NamedTuple):
    """Results of queries over some of their keys.

    Attributes:
        output: over these keys, (*, H, L, F).
        largest: the largest score, (*, H, L); -inf for a query without a key.
        total: the sum of exp(score - largest), (*, H, L). At a score of -1e9, largest + log(total) loses the logarithm.
    """

    output: torch.Tensor
    largest: torch.Tensor
    total: torch.Tensor


class Gradients(NamedTuple):
    """Gradients of queries, keys and values, and on request of the scores."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor | None = None


InputGrads: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor | None]]
"""The gradients of queries, keys, values, and each mask; None for a mask without a gradient."""


def flash_attention(x: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the log-sum-exp of the scores: -inf for a query without a key."""
    features = max(x.q.shape[-1], x.v.shape[-1])
    shape = (*x.q.shape[:-1], x.v.shape[-1])
    if _is_empty(x):
        return x.q.new_zeros(shape), wide(x.q).new_full(shape[:-1], -torch.inf)
    mask, causal = _kernel_mask(x)
    arguments = [_padded(tensor, features) for tensor in x[:3]]
    output, sums = cpu_flash_attention(*arguments, 0.0, causal, attn_mask=mask, scale=x.rule.scale)
    if mask is not None:  # the kernel returns 0 for queries without a key
        sums = sums.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
    return output[..., : shape[-1]].reshape(shape), sums.reshape(shape[:-1])


def partial_attention(x: Operands) -> Partial:
    """Attention of the queries over these keys."""
    output, logarithms = flash_attention(x)
    if not _is_large(logarithms):
        return Partial(output, logarithms, torch.ones_like(logarithms))
    return _partial_by_scores(x)


@without_autocast
def _partial_by_scores(x: Operands) -> Partial:
    """Attention with large scores, which the call stores."""
    scores = masked_scores(x)
    largest = scores.amax(-1)
    weights = (scores - finite(largest).unsqueeze(-1)).exp()
    total = weights.sum(-1)
    output = (weights @ wide(x.v)) / nonzero(total).unsqueeze(-1)
    return Partial(output.to(x.q.dtype), largest, total)


def gradients(gradient: torch.Tensor, x: Operands, result: Partial, of_scores: bool = False) -> Gradients:
    """Gradients from the gradient of the output. `result` may be over further keys, too."""
    if _is_empty(x):
        q, k, v = (torch.zeros_like(tensor) for tensor in x[:3])
        return Gradients(q, k, v, wide(x.q).new_zeros(*x.q.shape[:-1], x.k.shape[-2]) if of_scores else None)
    logarithms = result.largest + result.total.log()
    if of_scores or _is_large(logarithms):
        return _gradients_by_scores(x, gradient, result)
    features = max(x.q.shape[-1], x.v.shape[-1])
    mask, causal = _kernel_mask(x)
    arguments = [_padded(tensor, features) for tensor in (gradient, *x[:3], result.output)]
    # exp(score - inf) is 0: queries without a key have no gradient.
    sums = logarithms.masked_fill(logarithms == -torch.inf, torch.inf).reshape(arguments[1].shape[:-1])
    results = cpu_flash_attention_backward(*arguments, sums, 0.0, causal, attn_mask=mask, scale=x.rule.scale)
    q, k, v = (tensor[..., : like.shape[-1]].reshape(like.shape) for tensor, like in zip(results, x[:3], strict=True))
    return Gradients(q, k, v)


@without_autocast
def _gradients_by_scores(x: Operands, gradient: torch.Tensor, result: Partial) -> Gradients:
    """Gradients with large scores, or of scores, which the call stores."""
    dtype, gradient, output = x.q.dtype, wide(gradient), wide(result.output)
    weights = (masked_scores(x) - finite(result.largest).unsqueeze(-1)).exp()
    weights = weights / nonzero(result.total).unsqueeze(-1)
    of_values = weights.transpose(-2, -1) @ gradient
    of_weights = gradient @ wide(x.v).transpose(-2, -1)
    of_scores = weights * (of_weights - (gradient * output).sum(-1, keepdim=True))
    of_queries = of_scores @ wide(x.k) * x.rule.scale
    sum_heads = of_scores.transpose(-2, -1) @ wide(x.q) * x.rule.scale
    return Gradients(of_queries.to(dtype), sum_heads.to(dtype), of_values.to(dtype), of_scores)


def mask_gradients(scores: torch.Tensor | None, masks: Masks, wanted: Sequence[bool]) -> list[torch.Tensor | None]:
    """The gradients of masks from the gradient of the scores."""
    return [
        scores.sum_to_size(mask.shape) if is_wanted and scores is not None else None
        for mask, is_wanted in zip(masks, wanted, strict=True)
    ]


def merge_partial(first: Partial, second: Partial) -> Partial:
    """Merge partial attention over two sets of keys. Overwrites the first output."""
    largest = torch.maximum(first.largest, second.largest)
    first_total = first.total * (first.largest - finite(largest)).exp()
    second_total = second.total * (second.largest - finite(largest)).exp()
    total = first_total + second_total
    output = first.output.mul_((first_total / nonzero(total)).unsqueeze(-1))
    output += wide(second.output) * (second_total / nonzero(total)).unsqueeze(-1)
    return Partial(output, largest, total)


def finite(largest: torch.Tensor) -> torch.Tensor:
    """The largest scores, and 0 for queries without a key: their weights become 0."""
    return largest.masked_fill(largest == -torch.inf, 0.0)


def nonzero(total: torch.Tensor) -> torch.Tensor:
    """A divisor: 1 in place of 0, so that queries without a key keep weights of 0."""
    return total.masked_fill(total == 0.0, 1.0)


def _is_large(logarithms: torch.Tensor) -> bool:
    """Whether log-sum-exps are so large that rounding loses the sums."""
    return bool(((logarithms.abs() > _LARGE_LOGARITHM) & logarithms.isfinite()).any())


def _is_empty(x: Operands) -> bool:
    """Whether there is nothing to compute: the kernel would divide by zero and end the process."""
    features = max(x.q.shape[-1], x.v.shape[-1])
    return x.q.shape[:-1].numel() == 0 or x.k.shape[-2] == 0 or features == 0


def _in_four_dims(x: torch.Tensor) -> torch.Tensor:
    """Join all leading dimensions: (*, heads, rows, features) becomes four dimensions."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _padded(x: torch.Tensor, features: int) -> torch.Tensor:
    """Pad with zeros to a number of features, with stride 1.

    The kernel expects as many features in keys as in values, and ignores the stride between features.
    """
    x = _in_four_dims(x)
    if x.shape[-1] != features:  # the result is in the memory format of x
        x = torch.nn.functional.pad(x, (0, features - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()


def _kernel_mask(x: Operands) -> tuple[torch.Tensor | None, bool]:
    """The mask for the kernel, and whether the kernel masks causally."""
    if x.rule.reach == 0 and not x.masks:
        return None, True
    mask = additive_mask(x)
    if mask is None:
        return None, False
    mask = mask.reshape(*(1,) * (x.q.dim() - mask.dim()), *mask.shape)
    leading = mask.shape[:-3] if math.prod(mask.shape[:-3]) == 1 else x.q.shape[:-3]
    return _in_four_dims(mask.expand(*leading, *mask.shape[-3:-1], x.k.shape[-2])), False
