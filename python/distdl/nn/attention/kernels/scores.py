"""Attention by plain torch operations: differentiable any number of times, stores all scores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch

from distdl.nn.attention.kernels.operands import Operands
from distdl.nn.base.precision import wide

AttentionOptions = ParamSpec("AttentionOptions")
AttentionResult = TypeVar("AttentionResult")


def without_autocast(
    function: Callable[Concatenate[Operands, AttentionOptions], AttentionResult],
) -> Callable[Concatenate[Operands, AttentionOptions], AttentionResult]:
    """The function without autocast, in the precision that it chooses itself."""

    @functools.wraps(function)
    def call(x: Operands, /, *args: AttentionOptions.args, **kwargs: AttentionOptions.kwargs) -> AttentionResult:
        if not torch.is_autocast_enabled(x.q.device.type):
            return function(x, *args, **kwargs)
        with torch.autocast(x.q.device.type, enabled=False):
            return function(x, *args, **kwargs)

    return call


def additive_mask(x: Operands) -> torch.Tensor | None:
    """The sum of all masks and the reach, to add to the scores; None for nothing."""
    rows, columns, reach = x.q.shape[-2], x.k.shape[-2], x.rule.reach
    dtype = x.q.dtype
    boolean_masks = [mask for mask in x.masks if mask.dtype == torch.bool]
    if reach is not None and reach < columns - 1:
        boolean_masks.append(torch.ones(rows, columns, dtype=torch.bool, device=x.q.device).tril(reach))
    total: torch.Tensor | None = None
    for mask in x.masks:
        if mask.dtype != torch.bool:
            total = mask.to(dtype) if total is None else total + mask.to(dtype)
    for mask in boolean_masks:
        zero = x.q.new_zeros((), dtype=dtype) if total is None else total
        total = torch.where(mask, zero, -torch.inf)
    return total


def masked_scores(x: Operands) -> torch.Tensor:
    """The scores with the masks, in the precision of sums."""
    q, k = wide(x.q), wide(x.k)
    scores = (q * x.rule.scale) @ k.transpose(-2, -1)
    mask = additive_mask(Operands(q, *x[1:]))
    return scores if mask is None else scores + mask


@without_autocast
def attention_by_scores(
    x: Operands, dropout: torch.Tensor | None = None, zero_rows: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the weights of attention.

    Args:
        zero_rows: whether queries without a key have weights of 0, as in scaled_dot_product_attention, or nan, as in a
            softmax.
    """
    scores = masked_scores(x)
    if zero_rows and (x.masks or x.rule.reach is not None):
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    else:
        weights = scores.softmax(-1)
    if dropout is not None:
        weights = weights * dropout
    return (weights @ wide(x.v)).to(x.q.dtype), weights.to(x.q.dtype)
