"""Functions of this library that exchange states with the sequential model, for models with old names of parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch

from distdl.classic.keys import OldLayer, as_in_torch

FUNCTIONS = ("sequential_state_dict", "load_sequential", "sequential_gradients", "save", "load")


def _names_of_torch(model: torch.nn.Module, given: object) -> object:
    """A state under the names of torch.nn, where it has old ones; anything else as it is."""
    if not isinstance(given, Mapping) or not all(isinstance(one, torch.Tensor) for one in given.values()):
        return given
    names = {
        f"{prefix}.{old}".lstrip("."): f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        if isinstance(module, OldLayer)
        for name, old in module.old_names.items()
    }
    return {names.get(key, key): value for key, value in given.items()}


def with_names_of_torch(function: Callable[..., object]) -> Callable[..., object]:
    """The function, to which a model shows the names of the sequential model."""

    @functools.wraps(function)
    def renaming(*args: object, **more: object) -> object:
        model = next((one for one in (*args, *more.values()) if isinstance(one, torch.nn.Module)), None)
        if model is None:
            return function(*args, **more)
        args = tuple(_names_of_torch(model, one) for one in args)
        more = {key: _names_of_torch(model, one) for key, one in more.items()}
        optimizer = next((one for one in (*args, *more.values()) if isinstance(one, torch.optim.Optimizer)), None)
        with as_in_torch(model, optimizer):
            return function(*args, **more)

    return renaming
