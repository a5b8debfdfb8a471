"""Functions of the elements that a mask selects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch


@dataclass
class Selection:
    """The elements of a tensor at which a mask is true. The mask has the shape of the tensor's first dimensions."""

    values: torch.Tensor
    mask: torch.Tensor

    @property
    def dims(self) -> int:
        """The number of dimensions of each element."""
        return self.values.dim() - self.mask.dim()

    @property
    def expanded_mask(self) -> torch.Tensor:
        """The mask with as many dimensions as the values."""
        return self.mask.reshape(*self.mask.shape, *[1] * self.dims)

    def filled(self, number: float | None = None) -> torch.Tensor:
        """The values, with a number where the mask is false; most functions are finite at the default."""
        kind = self.values.dtype
        if number is None:
            number = 0.5 if kind.is_floating_point or kind.is_complex else 1
        return torch.where(self.expanded_mask, self.values, bool(number) if kind == torch.bool else number)

    def dims_of_values(self, dims: list[int]) -> list[int]:
        """Dimensions of the selected elements, as dimensions of the values. The first counts the selected elements."""
        masked = self.mask.dim()
        return [e for d in dims for e in (range(masked) if d == 0 else [masked - 1 + d])]


Compute = Callable[..., torch.Tensor]


Outcome: TypeAlias = torch.Tensor | Selection | None
"""The result of a function of selections; None if it cannot be recorded."""


def _dims(x: Selection, dim: object) -> list[int]:
    """The dimensions of the selected elements that a sum is taken over."""
    dims = [dim] if isinstance(dim, int) else [*dim] if isinstance(dim, list | tuple) else []
    return sorted({d % (1 + x.dims) for d in dims}) or list(range(1 + x.dims))


def _sum(function: Compute, input: Selection, dim: object = None, keepdim: bool = False, **options: object) -> Outcome:
    """A sum, or whether any or all elements are true."""
    dims, values = _dims(input, dim), input.filled(1 if function is torch.all else 0)
    if 0 not in dims:
        return Selection(function(values, input.dims_of_values(dims), keepdim, **options), input.mask)
    result = function(values, input.dims_of_values(dims), **options)
    for d in dims if keepdim else []:
        result = result.unsqueeze(d)
    return result


def _mean(
    function: Compute, input: Selection, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Outcome:
    """A mean; NaN of an empty selection."""
    dims = _dims(input, dim)
    if 0 not in dims:
        return Selection(function(input.filled(), input.dims_of_values(dims), keepdim, dtype=dtype), input.mask)
    dtype = dtype or input.values.dtype
    adds_in = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    total = _sum(torch.sum, input, dims, keepdim, dtype=adds_in)
    assert isinstance(total, torch.Tensor)
    count = input.mask.sum() * math.prod(input.values.shape[d] for d in input.dims_of_values(dims[1:]))
    return (total / count).to(dtype)


def _loss(
    function: Compute,
    input: Selection,
    target: object,
    weight: object = None,
    reduction: str = "mean",
    **options: object,
) -> Outcome:
    """A loss that compares each element with its target."""
    if not isinstance(target, Selection) or target.dims != input.dims:
        return None
    if reduction not in ("none", "sum", "mean"):
        return None
    if weight is not None:
        if not function.__name__.startswith("binary_cross_entropy"):
            return None  # torch divides by the sum of the weights
        options["weight"] = weight
    for name, option in options.items():
        if isinstance(option, Selection):
            options[name] = option.filled()
        elif isinstance(option, torch.Tensor) and option.dim() > input.dims:
            return None
    losses = Selection(function(input.filled(), target.filled(), reduction="none", **options), input.mask)
    if reduction == "none":
        return losses
    return _sum(torch.sum, losses) if reduction == "sum" else _mean(torch.mean, losses)


def _class_loss(
    function: Compute,
    input: Selection,
    target: object,
    weight: object = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    **options: object,
) -> Outcome:
    """A loss of scores and right classes. The classes are the first dimension of each element."""
    if not isinstance(target, Selection) or target.dims != input.dims - 1 or isinstance(weight, Selection):
        return None
    options |= {"weight": weight, "ignore_index": ignore_index, "reduction": reduction}
    scores, classes = input.filled(0).movedim(input.mask.dim(), 1), target.filled(ignore_index)
    result = function(scores, classes, **options)
    return Selection(result, input.mask) if reduction == "none" else result


def _linear(function: Compute, input: Selection, weight: object, bias: object = None) -> Outcome:
    if input.dims == 0 or isinstance(weight, Selection):
        return None
    return Selection(function(input.filled(), weight, bias), input.mask)


def _matmul(function: Compute, input: Selection, other: object) -> Outcome:
    if input.dims == 0 or not isinstance(other, torch.Tensor) or other.dim() > 2:
        return None
    return Selection(function(input.filled(), other), input.mask)


def _call_filled(number: float | None, function: Compute, input: Selection, **options: object) -> Outcome:
    """A function over dimensions of the elements, with a number in place of elements that are not selected."""
    return Selection(function(input.filled(number), **options), input.mask)


def _softmax(function: Compute, input: Selection, dim: int, **options: object) -> Outcome:
    d = dim % (1 + input.dims)
    return Selection(function(input.filled(), input.mask.dim() - 1 + d, **options), input.mask) if d > 0 else None


_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
           "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "soft_margin_loss")  # fmt: skip


SELECTED_FUNCTIONS: dict[str, Callable[..., Outcome]] = {
    **dict.fromkeys(("all", "any", "sum"), _sum),
    "mean": _mean,
    **dict.fromkeys(_LOSSES, _loss),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _class_loss),
    "linear": _linear,
    "matmul": _matmul,
    **dict.fromkeys(("layer_norm", "rms_norm"), partial(_call_filled, None)),
    **dict.fromkeys(("log_softmax", "softmax"), _softmax),
    "embedding": partial(_call_filled, 0),
}
"""Functions of selections that are recorded, besides elementwise functions."""
