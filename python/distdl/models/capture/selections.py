"""Record functions of the elements that a mask selects, as in ``x[mask].mean()``.

The number of these elements is not known before the model runs. So functions of all elements are recorded. Elements
that are not selected are replaced before: by a number at which functions and their derivatives are finite, or by 0 in
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from types import FunctionType

import torch

from distdl.models.capture.arguments import arguments_by_name
from distdl.models.capture.recording import Arguments, Function
from distdl.models.capture.selected_functions import SELECTED_FUNCTIONS, Selection
from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.modes import without_functions
from distdl.torch_compat.trees import tree_leaves, tree_map_only

UNKNOWN_NUMBER = (
    "their number is not known before the model runs; functions of each element, sums, means and losses are known, "
    'and mask.sum() is the number. Elsewhere use torch.where(mask, x, other), or distribute(..., values="agree")'
)


Compare = Callable[[torch.Tensor, torch.Tensor], bool]


_DESCRIBE = {"device", "dim", "dtype", "is_complex", "is_floating_point", "is_leaf", "ndim", "requires_grad"}
"""Functions and attributes whose result does not depend on the number of elements."""


class Selections:
    """The selections of a recording. The model holds a tensor without elements in place of each.

    Args:
        elementwise: the names of elementwise functions.
    """

    def __init__(self, elementwise: Container[str]) -> None:
        self._elementwise = elementwise
        self._tensors: dict[int, torch.Tensor] = {}
        self._selections: dict[int, Selection] = {}

    def among(self, arguments: object) -> list[Selection]:
        """The selections among the arguments of a call."""
        return [self._selections[id(leaf)] for leaf in tree_leaves(arguments) if id(leaf) in self._selections]

    def call(
        self, function: Function, key: str, args: Arguments, kwargs: dict[str, object], are_alike: Compare
    ) -> object:
        """The result of a call that selects elements or takes selections; NotImplemented for other calls.

        Args:
            are_alike: whether two masks have the same values.

        Raises:
            NotImplementedError: if the result depends on the number of elements or on their order.
        """
        selections = self.among((args, kwargs))
        if not selections:
            selection = _selected(key, args, kwargs)
            return NotImplemented if selection is None else self._placeholder(selection)
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
        compute = SELECTED_FUNCTIONS.get(key)
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
            is_legacy = [named.pop(name, None) for name in ("size_average", "reduce")] != [None, None]
            if isinstance(named.get("input"), Selection) and not is_legacy:
                result = compute(function, **named)
        if result is None:
            raise NotImplementedError(f"{key} of elements that a mask selects")
        return self._placeholder(result) if isinstance(result, Selection) else result

    def _placeholder(self, selection: Selection) -> torch.Tensor:
        """A tensor without elements that the model holds in place of a selection."""
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
        """Call an elementwise function, which may write into its first argument."""

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
        return tree_map_only(torch.Tensor, lambda values: self._placeholder(Selection(values, like.mask)), result)

    def _write(self, selection: Selection, x: torch.Tensor, *_: object) -> None:
        """Record ``x[mask] = selection``."""
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
    """The selection that a call makes; None for other calls."""
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
