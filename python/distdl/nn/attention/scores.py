"""Attention of operations that torch differentiates any number of times, which keep all scores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch

from distdl.nn.attention.operands import Operands
from distdl.nn.precision import wide

Further = ParamSpec("Further")
Result = TypeVar("Result")


def without_autocast(
    function: Callable[Concatenate[Operands, Further], Result],
) -> Callable[Concatenate[Operands, Further], Result]:
    """The function in the precision that it asks for itself."""

    @functools.wraps(function)
    def call(x: Operands, /, *args: Further.args, **kwargs: Further.kwargs) -> Result:
        if not torch.is_autocast_enabled(x.q.device.type):
            return function(x, *args, **kwargs)
        with torch.autocast(x.q.device.type, enabled=False):
            return function(x, *args, **kwargs)

    return call


def additive(x: Operands) -> torch.Tensor | None:
    """The tensor to add to the scores, from all masks and the reach; None for nothing."""
    rows, columns, reach = x.q.shape[-2], x.k.shape[-2], x.rule.reach
    dtype = x.q.dtype
    bools = [mask for mask in x.masks if mask.dtype == torch.bool]
    if reach is not None and reach < columns - 1:
        bools.append(torch.ones(rows, columns, dtype=torch.bool, device=x.q.device).tril(reach))
    total: torch.Tensor | None = None
    for mask in x.masks:
        if mask.dtype != torch.bool:
            total = mask.to(dtype) if total is None else total + mask.to(dtype)
    for mask in bools:
        zero = x.q.new_zeros((), dtype=dtype) if total is None else total
        total = torch.where(mask, zero, -torch.inf)
    return total


def added(x: Operands) -> torch.Tensor:
    """The scores with the masks, in the precision of sums."""
    q, k = wide(x.q), wide(x.k)
    scores = (q * x.rule.scale) @ k.transpose(-2, -1)
    mask = additive(Operands(q, *x[1:]))
    return scores if mask is None else scores + mask


@without_autocast
def composed(
    x: Operands, kept: torch.Tensor | None = None, zero_rows: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the weights of attention.

    Args:
        x: what it is computed of.
        kept: what the weights are multiplied by.
        zero_rows: whether queries that look at no key have weights of 0, as in scaled_dot_product_attention; nan, as in
            a softmax, otherwise.
    """
    scores = added(x)
    if zero_rows and (x.masks or x.rule.reach is not None):
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    else:
        weights = scores.softmax(-1)
    if kept is not None:
        weights = weights * kept
    return (weights @ wide(x.v)).to(x.q.dtype), weights.to(x.q.dtype)
