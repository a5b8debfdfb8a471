"""Functions as modules, so that they can be distributed as models are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

import torch


def not_forward(name: str, module: torch.nn.Module) -> str:
    """Why another method of a module, or a property, is not distributed."""
    kind = "method" if callable(getattr(type(module), name, None)) else "property"
    return (
        f"distribute: {name} is a {kind} of the module {type(module).__name__}; distribute the module, with this "
        "method as its forward()"
    )


def module_of(function: Callable[..., object]) -> torch.nn.Module:
    """A module without parameters that calls the function, and has its name and arguments.

    Raises:
        TypeError: if the function belongs to a module, whose parameters would be left out.
    """
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(owner, torch.nn.Module):
        raise TypeError(not_forward(name, owner))
    forward = staticmethod(_telling_its_arguments(function))
    kind: type[torch.nn.Module] = type(name, (torch.nn.Module,), {"forward": forward})
    return kind()


def whole_module(model: object) -> torch.nn.Module:
    """The module of a function; all else as it is, to be refused if it is no module."""
    if callable(model) and not isinstance(model, torch.nn.Module | type):
        return module_of(model)
    return cast(torch.nn.Module, model)


def _telling_its_arguments(function: Callable[..., object]) -> Callable[..., object]:
    """A function that tells its arguments, as many functions of torch do not."""
    try:
        inspect.signature(function)
    except ValueError:
        return lambda *args, **kwargs: function(*args, **kwargs)
    return function
