"""Normalize the arguments of torch's own functions."""

from __future__ import annotations

import functools
import inspect
import re
from types import FunctionType

import torch

from distdl.models.capture.recording import Arguments, Function
from distdl.torch_compat.operators import schemas_of
from distdl.torch_compat.trees import tree_leaves, tree_map_only

_OF_NUMPY = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}
"""NumPy's names of arguments, which torch takes as well."""
_BY_NAME_ONLY = {"is_contiguous"}
"""Functions whose arguments torch takes by name, other than their schemas say."""


def normalize_arguments(
    function: Function, args: Arguments, kwargs: dict[str, object]
) -> tuple[Arguments, dict[str, object]]:
    """Pass arguments by position where torch allows it, and the others by torch's names, in its order.

    So rules find the tensors of each call in the same order. Functions that are written in Python are left alone: they
    hand on their arguments so.
    """
    if not kwargs or isinstance(function, FunctionType) or getattr(function, "__name__", "") in _BY_NAME_ONLY:
        return args, kwargs
    for names, count in _overloads(getattr(function, "__name__", "")):
        left = names[len(args) :]
        named = {name if name in names else _OF_NUMPY.get(name, name): argument for name, argument in kwargs.items()}
        if named.keys() <= set(left) and len(named) == len(kwargs):
            positional = [*args]
            while len(positional) < count and names[len(positional)] in named:
                positional.append(named.pop(names[len(positional)]))
            return tuple(positional), {name: named[name] for name in left if name in named}
    return args, kwargs


@functools.cache
def _overloads(name: str) -> list[tuple[tuple[str, ...], int]]:
    """The names of the arguments of each overload of a function, and how many of them may be passed by position."""
    overloads = []
    for schema in schemas_of(name):
        names = tuple("input" if argument.name == "self" else argument.name for argument in schema.arguments)
        overloads.append((names, sum(not argument.kwarg_only for argument in schema.arguments)))
    return overloads


def arguments_by_name(function: Function, args: Arguments, kwargs: dict[str, object]) -> dict[str, object]:
    """The arguments of a call by name. Positional arguments are left out if their names are unknown."""
    if isinstance(function, FunctionType):
        return {**inspect.signature(function).bind(*args, **kwargs).arguments}
    for names, count in _overloads(getattr(function, "__name__", "")):
        if len(args) <= count and kwargs.keys() <= set(names[len(args) :]):
            return dict(zip(names, args, strict=False)) | kwargs
    return kwargs


def call_detaching(function: Function, args: Arguments, kwargs: dict[str, object]) -> tuple[object, list[torch.Tensor]]:
    """The result of a call, and its tensors that are detached because torch has no derivative by them.

    Torch refuses such a tensor if it asks for gradients. All inputs of a recorded model ask for gradients, even if the
    inputs of its later calls do not.
    """
    try:
        return function(*args, **kwargs), []
    except RuntimeError as error:
        if str(error).startswith("Autograd not support dtype"):  # a sum in integers, for example
            with torch.no_grad():
                asking = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
                return function(*args, **kwargs), asking
        refused = re.search(r"respect to argument '(\w+)'\. This input cannot have requires_grad", str(error))
        tensor = arguments_by_name(function, args, kwargs).get(refused[1]) if refused else None
        if not isinstance(tensor, torch.Tensor):
            raise
    constant = tensor.detach()
    arguments = tree_map_only(torch.Tensor, lambda own: constant if own is tensor else own, (args, kwargs))
    result, others = call_detaching(function, *arguments)
    return result, [tensor, *others]
