"""Record what a model does with the elements that a mask selects, as in ``x[mask].mean()``.

Their number is not known before the model runs. So all elements are recorded, and those that the mask leaves out are
replaced before each function: by a number at which functions and their derivatives are finite, or by 0 in sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TypeAlias

import torch

from distdl.models.capture.arguments import arguments_by_name
from distdl.models.capture.recording import Arguments, Function
from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.modes import without_functions
from distdl.torch_compat.trees import tree_flatten, tree_map_only


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
        """The values, with a number where the mask is false; by default, most functions are finite there."""
        kind = self.values.dtype
        if number is None:
            number = 0.5 if kind.is_floating_point or kind.is_complex else 1
        return torch.where(self.expanded_mask, self.values, bool(number) if kind == torch.bool else number)

    def dims_of_values(self, dims: list[int]) -> list[int]:
        """Dimensions of the selected elements, as dimensions of the values. The first is that of all elements."""
        masked = self.mask.dim()
        return [e for d in dims for e in (range(masked) if d == 0 else [masked - 1 + d])]


Compare = Callable[[torch.Tensor, torch.Tensor], bool]
Compute = Callable[..., torch.Tensor]
Outcome: TypeAlias = torch.Tensor | Selection | None
"""The result of a function of selections; None if it is not known."""


class Selections:
    """The selections of a recording. The model holds a tensor without elements in place of each.

    Args:
        elementwise: the names of functions that work on each element by itself.
    """

    def __init__(self, elementwise: Container[str]) -> None:
        self._elementwise = elementwise
        self._tensors: dict[int, torch.Tensor] = {}
        self._selections: dict[int, Selection] = {}

    def among(self, arguments: object) -> list[Selection]:
        """The selections among the arguments of a call."""
        return [self._selections[id(leaf)] for leaf in tree_flatten(arguments)[0] if id(leaf) in self._selections]

    def call(
        self, function: Function, key: str, args: Arguments, kwargs: dict[str, object], are_alike: Compare
    ) -> object:
        """The result of a call that selects elements or takes selections; NotImplemented for other calls.

        Args:
            are_alike: finds out whether two masks have the same values.

        Raises:
            NotImplementedError: if the result depends on the number of elements or on their order.
        """
        selections = self.among((args, kwargs))
        if not selections:
            selection = _selected(key, args, kwargs)
            return NotImplemented if selection is None else self._stand_in(selection)
        if key in _DESCRIBE:
            with without_functions():
                return function(*args, **kwargs)
        masks = [selection.mask for selection in selections]
        masks += [_mask_in(*args[:2])] if key == "setitem" else []
        if not all(mask is not None and are_alike(mask, masks[0]) for mask in masks):
            raise NotImplementedError(f"{key} of elements that different masks select")
        if key == "setitem":
            self._write(selections[-1], *args)
            return None
        compute = _FUNCTIONS.get(key)
        if compute is not None or key in self._elementwise:
            with without_functions():
                function(*args, **kwargs)  # raises the errors that torch raises
        if key in self._elementwise:
            return self._call_elementwise(function, key, args, kwargs, selections[0])
        result = None
        if compute is not None:
            function = function if isinstance(function, FunctionType) else getattr(torch, key, function)
            arguments = arguments_by_name(function, args, kwargs)
            named = {name: self._selections.get(id(value), value) for name, value in arguments.items()}
            result = compute(function, **named) if isinstance(named.get("input"), Selection) else None
        if result is None:
            raise NotImplementedError(f"{key} of elements that a mask selects")
        return self._stand_in(result) if isinstance(result, Selection) else result

    def _stand_in(self, selection: Selection) -> torch.Tensor:
        """A tensor without elements, which the model holds in place of a selection."""
        with without_functions(), torch.enable_grad():
            values = selection.values
            tensor = values.detach().new_empty((0, *values.shape[selection.mask.dim() :]))
            tensor = tensor.requires_grad_(values.requires_grad).clone()  # no leaf, so that it can be written into
        self._tensors[id(tensor)] = tensor
        self._selections[id(tensor)] = selection
        return tensor

    def _call_elementwise(
        self, function: Function, key: str, args: Arguments, kwargs: dict[str, object], like: Selection
    ) -> object:
        """Call a function that works on each element by itself, and may write into its first argument."""

        def filled(tensor: torch.Tensor) -> torch.Tensor:
            selection = self._selections.get(id(tensor))
            if tensor.dim() > like.dims if selection is None else selection.dims != like.dims:
                raise NotImplementedError(f"{key} of elements that a mask selects, and of others")
            return tensor if selection is None else selection.filled(1.5 if key in ("acosh", "arccosh") else None)

        own, named = tree_map_only(torch.Tensor, filled, (args, kwargs))
        result = function(*own, **named)
        if result is own[0]:  # which was written into
            self._selections[id(args[0])] = Selection(result, like.mask)
            return args[0]
        return tree_map_only(torch.Tensor, lambda values: self._stand_in(Selection(values, like.mask)), result)

    def _write(self, selection: Selection, x: torch.Tensor, *_: object) -> None:
        """Carry out ``x[mask] = selection``."""
        if self.among(x) or x.dim() != selection.values.dim():
            raise NotImplementedError("setitem of elements that a mask selects, of other sizes")
        x.copy_(torch.where(selection.expanded_mask, selection.values.to(x.dtype), x))


def _mask_in(x: torch.Tensor, index: object) -> torch.Tensor | None:
    """The mask in ``x[mask]`` or ``x[mask, :, ...]``; None for other indices."""
    mask, *rest = index if isinstance(index, tuple) and index else (index,)
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.dim() == 0:
        return None
    takes_all = all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in rest)
    return mask if takes_all and mask.shape == x.shape[: mask.dim()] else None


def _selected(key: str, args: Arguments, kwargs: dict[str, object]) -> Selection | None:
    """The selection that a call makes, if it makes one."""
    if key == "getitem":
        x, mask = args[0], _mask_in(*args)
    elif key == "masked_select" and len(args) == 2 and not kwargs:
        x, mask = torch.broadcast_tensors(*args)
    else:
        return None
    if not isinstance(mask, FakeTensor) or mask.constant is not None:  # torch knows the number of elements
        return None
    mask = mask.clone()  # the model may write into x and into the mask afterwards
    return Selection(Selection(x, mask).filled(0), mask)


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
    """A mean; NaN if nothing is selected."""
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
    size_average: object = None,
    reduce: object = None,
    reduction: str = "mean",
    **options: object,
) -> Outcome:
    """A loss that compares each element with its target."""
    if not isinstance(target, Selection) or target.dims != input.dims:
        return None
    if size_average is not None or reduce is not None or reduction not in ("none", "sum", "mean"):
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
    size_average: object = None,
    ignore_index: int = -100,
    reduce: object = None,
    reduction: str = "mean",
    **options: object,
) -> Outcome:
    """A loss of scores for classes, which are the first dimension of each element, and of the right classes."""
    if not isinstance(target, Selection) or target.dims != input.dims - 1:
        return None
    if isinstance(weight, Selection) or size_average is not None or reduce is not None:
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


def _norm(
    function: Compute, input: Selection, normalized_shape: Sequence[int], *arguments: object, **options: object
) -> Outcome:
    """A normalization over the last dimensions, all of which are dimensions of the elements: torch has seen that."""
    return Selection(function(input.filled(), normalized_shape, *arguments, **options), input.mask)


def _softmax(function: Compute, input: Selection, dim: int, **options: object) -> Outcome:
    d = dim % (1 + input.dims)
    return Selection(function(input.filled(), input.mask.dim() - 1 + d, **options), input.mask) if d > 0 else None


def _embedding(function: Compute, input: Selection, weight: object, **options: object) -> Outcome:
    return Selection(function(input.filled(0), weight, **options), input.mask)


_DESCRIBE = {"device", "dim", "dtype", "is_complex", "is_floating_point", "is_leaf", "ndim", "requires_grad"}
"""Functions and attributes whose result does not depend on the number of elements."""

_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
           "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "soft_margin_loss")  # fmt: skip

_FUNCTIONS: dict[str, Callable[..., Outcome]] = {
    **dict.fromkeys(("all", "any", "sum"), _sum),
    "mean": _mean,
    **dict.fromkeys(_LOSSES, _loss),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _class_loss),
    "linear": _linear,
    "matmul": _matmul,
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("log_softmax", "softmax"), _softmax),
    "embedding": _embedding,
}
"""Functions of selections that are recorded, besides those of each element by itself."""
