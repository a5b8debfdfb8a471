"""Attention of one worker's queries to keys and values that it has: the kernels, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from distdl.nn.precision import wide

Context: TypeAlias = torch.autograd.function.FunctionCtx
Masks: TypeAlias = Sequence[torch.Tensor]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_LARGE = 256.0  # a logarithm of a sum that is larger has lost too much of the sum to rounding


class Rule(NamedTuple):
    """Which keys a query looks at, beside masks, and the factor of the scores.

    Attributes:
        scale: of the products of queries and keys.
        reach: query i looks at the keys up to i + reach; None for all keys.
    """

    scale: float
    reach: int | None = None


def additive(masks: Masks, reach: int | None, rows: int, columns: int, like: torch.Tensor) -> torch.Tensor | None:
    """What to add to the scores, from masks that are boolean (True for keys that count) or added; None for nothing."""
    bools = [mask for mask in masks if mask.dtype == torch.bool]
    if reach is not None and reach < columns - 1:
        bools.append(torch.ones(rows, columns, dtype=torch.bool, device=like.device).tril(reach))
    total: torch.Tensor | None = None
    for mask in masks:
        if mask.dtype != torch.bool:
            total = mask.to(like.dtype) if total is None else total + mask.to(like.dtype)
    for mask in bools:
        zero = like.new_zeros(()) if total is None else total
        total = torch.where(mask, zero, -torch.inf)
    return total


def composed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    masks: Masks,
    rule: Rule,
    kept: torch.Tensor | None = None,
    zero_rows: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the weights of attention, of operations that torch differentiates any number of times.

    Args:
        q, k, v: of shapes (*, L, E), (*, S, E) and (*, S, F).
        masks: broadcastable to (*, L, S).
        rule: of the scores.
        kept: what the weights are multiplied by.
        zero_rows: whether queries that look at no key have weights of 0, as in scaled_dot_product_attention; nan, as in
            a softmax, otherwise.
    """
    if torch.is_autocast_enabled(q.device.type):
        with torch.autocast(q.device.type, enabled=False):
            return composed(q, k, v, masks, rule, kept, zero_rows)
    dtype, q, k, v = q.dtype, wide(q), wide(k), wide(v)
    scores = (q * rule.scale) @ k.transpose(-2, -1)
    mask = additive(masks, rule.reach, q.shape[-2], k.shape[-2], q)
    if mask is not None:
        scores = scores + mask
    if mask is not None and zero_rows:
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    else:
        weights = scores.softmax(-1)
    if kept is not None:
        weights = weights * kept
    return (weights @ v).to(dtype), weights.to(dtype)


def _four(x: torch.Tensor) -> torch.Tensor:
    """The same with one leading dimension in front of heads, rows and features."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _padded(x: torch.Tensor, features: int) -> torch.Tensor:
    """The kernel takes as many features in keys as in values; further zeros in either change nothing."""
    x = _four(x)
    return x if x.shape[-1] == features else torch.nn.functional.pad(x, (0, features - x.shape[-1]))


def _mask_for(masks: Masks, rule: Rule, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """The mask of the kernel, and whether it masks causally by itself."""
    rows, columns = q.shape[-2], k.shape[-2]
    if rule.reach == 0 and not masks:
        return None, True
    mask = additive(masks, rule.reach, rows, columns, q)
    if mask is None:
        return None, False
    mask = mask.reshape(*(1,) * (q.dim() - mask.dim()), *mask.shape)
    leading = mask.shape[:-3] if math.prod(mask.shape[:-3]) == 1 else q.shape[:-3]
    return _four(mask.expand(*leading, *mask.shape[-3:-1], columns)), False


def _is_empty(q: torch.Tensor, k: torch.Tensor, features: int) -> bool:
    """Whether there is nothing to compute. The kernel ends the process in a division by zero."""
    return q.shape[:-1].numel() == 0 or k.shape[-2] == 0 or features == 0


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, rule: Rule
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the logarithm of the sum of the exponentials of the scores: -inf where a query sees no key."""
    features = max(q.shape[-1], v.shape[-1])
    if _is_empty(q, k, features):
        return q.new_zeros(*q.shape[:-1], v.shape[-1]), wide(q).new_full(q.shape[:-1], -torch.inf)
    mask, causal = _mask_for(masks, rule, q, k)
    arguments = [_padded(x, features) for x in (q, k, v)]
    output, sums = _flash(*arguments, 0.0, causal, attn_mask=mask, scale=rule.scale)
    if mask is not None:  # the kernel gives 0 for them
        sums = sums.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
    return output[..., : v.shape[-1]].reshape(*q.shape[:-1], v.shape[-1]), sums.reshape(q.shape[:-1])


def flash_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    sums: torch.Tensor,
    masks: Masks,
    rule: Rule,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v, where output and sums may be those of more keys than these."""
    features = max(q.shape[-1], v.shape[-1])
    if _is_empty(q, k, features):
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    mask, causal = _mask_for(masks, rule, q, k)
    arguments = [_padded(x, features) for x in (gradient, q, k, v, output)]
    # The exponential of a score minus inf is 0: what no key belongs to has no gradient.
    lse = sums.masked_fill(sums == -torch.inf, torch.inf).reshape(arguments[1].shape[:-1])
    found = _flash_backward(*arguments, lse, 0.0, causal, attn_mask=mask, scale=rule.scale)
    return tuple(one[..., : whole.shape[-1]].reshape(whole.shape) for one, whole in zip(found, (q, k, v), strict=True))


def is_large(logarithms: torch.Tensor) -> bool:
    """Whether logarithms of sums do not tell the sums, which large scores leave no digits for."""
    return bool(((logarithms.abs() > _LARGE) & logarithms.isfinite()).any())


def _scores(q: torch.Tensor, k: torch.Tensor, masks: Masks, rule: Rule) -> torch.Tensor:
    scores = (wide(q) * rule.scale) @ wide(k).transpose(-2, -1)
    mask = additive(masks, rule.reach, q.shape[-2], k.shape[-2], q)
    return scores if mask is None else scores + mask


def finite(largest: torch.Tensor) -> torch.Tensor:
    """The largest scores, 0 for queries that look at no key: their weights become 0."""
    return largest.masked_fill(largest == -torch.inf, 0.0)


def apart(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, masks: Masks, rule: Rule
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, the largest score, and the sum of the exponentials of the scores less the largest, by query."""
    output, logarithms = flash(q, k, v, masks, rule)
    if not is_large(logarithms):
        return output, logarithms, torch.ones_like(logarithms)
    scores = _scores(q, k, masks, rule)
    largest = scores.amax(-1)
    weights = (scores - finite(largest).unsqueeze(-1)).exp()
    total = weights.sum(-1)
    output = (weights @ wide(v)) / total.masked_fill(total == 0.0, 1.0).unsqueeze(-1)
    return output.to(q.dtype), largest, total


def apart_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    masks: Masks,
    rule: Rule,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k, v and of the scores, where output, largest and total may be those of more keys."""
    dtype, gradient, output = q.dtype, wide(gradient), wide(output)
    weights = (_scores(q, k, masks, rule) - finite(largest).unsqueeze(-1)).exp()
    weights = weights / total.masked_fill(total == 0.0, 1.0).unsqueeze(-1)
    of_values = weights.transpose(-2, -1) @ gradient
    of_weights = gradient @ wide(v).transpose(-2, -1)
    of_scores = weights * (of_weights - (gradient * output).sum(-1, keepdim=True))
    of_queries = of_scores @ wide(k) * rule.scale
    of_keys = of_scores.transpose(-2, -1) @ wide(q) * rule.scale
    return of_queries.to(dtype), of_keys.to(dtype), of_values.to(dtype), of_scores


class _Flash(torch.autograd.Function):
    """Attention that keeps no scores: the backward pass computes them again."""

    @staticmethod
    def forward(
        ctx: Context, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, *masks: torch.Tensor
    ) -> torch.Tensor:
        output, sums = flash(q, k, v, masks, rule)
        ctx.save_for_backward(q, k, v, output, sums, *masks)
        ctx.rule = rule
        return output

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, output, sums, *masks = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives, which the kernel does not have
            found = recomputed(lambda q, k, v: composed(q, k, v, masks, ctx.rule)[0], (q, k, v), gradients[0])
        elif is_large(sums):
            more = apart(q, k, v, masks, ctx.rule)
            found = apart_backward(gradients[0], q, k, v, *more, masks, ctx.rule)[:3]
        else:
            found = flash_backward(gradients[0], q, k, v, output, sums, masks, ctx.rule)
        return (*found, None, *(None for _ in masks))


def recomputed(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The gradients of a function that is computed again, which can be differentiated further."""
    used = [one if one.requires_grad else one.detach().requires_grad_() for one in inputs]
    return torch.autograd.grad(function(*used), used, gradient, create_graph=True)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    masks: Masks,
    rule: Rule,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of (*, H, L, E) queries to (*, H, S, E) keys, with masks that are broadcastable to (*, H, L, S)."""
    if kept is not None or q.device.type != "cpu" or any(mask.requires_grad for mask in masks):
        return composed(q, k, v, masks, rule, kept)[0]
    output: torch.Tensor = _Flash.apply(q, k, v, rule, *masks)
    return output
