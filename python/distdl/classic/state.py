"""Functions of this library that exchange states with the sequential model, for models with old names of parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch

from distdl.classic.keys import OldLayer, in_blocks

FUNCTIONS = ("sequential_state_dict", "load_sequential", "sequential_gradients")


def _renamed(model: torch.nn.Module) -> dict[str, str]:
    """The names of a model's parameters in torch.nn, by their old names."""
    return {
        f"{prefix}.{old}".lstrip("."): f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        if isinstance(module, OldLayer)
        for name, old in module.old_names.items()
    }


def with_names_of_torch(
    function: Callable[..., dict[str, torch.Tensor] | None],
) -> Callable[..., dict[str, torch.Tensor] | None]:
    """The function, where states have the names of the sequential model."""

    @functools.wraps(function)
    def renaming(model: torch.nn.Module, *args: object, **more: object) -> dict[str, torch.Tensor] | None:
        names = _renamed(model)
        old = {name: key for key, name in names.items()}

        def with_old_names(given: object) -> object:
            if not isinstance(given, Mapping):
                return given
            return {old.get(key, key): value for key, value in given.items()}

        options = {key: with_old_names(one) for key, one in more.items()}
        with in_blocks(model):
            found = function(model, *map(with_old_names, args), **options)
        return found if found is None else {names.get(key, key): value for key, value in found.items()}

    return renaming
