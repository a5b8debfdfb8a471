"""Functions of this library that take a model, for models with old names of parameters, or with ranks without any."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from distdl.classic.keys import OldLayer, as_in_torch


def _old_layers(model: object) -> list[OldLayer]:
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [module for module in modules if isinstance(module, OldLayer)]


def _names_of_torch(model: torch.nn.Module, value: object) -> object:
    """A state under the names of torch.nn, where it has old ones; anything else as it is."""
    if not isinstance(value, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in value.values()):
        return value
    names = {
        f"{prefix}.{old}".lstrip("."): f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        if isinstance(module, OldLayer)
        for name, old in module.old_names.items()
    }
    return {names.get(key, key): tensor for key, tensor in value.items()}


def with_names_of_torch(function: Callable[..., object]) -> Callable[..., object]:
    """The function, to which a model shows the names of the sequential model."""

    @functools.wraps(function)
    def renaming(*args: object, **options: object) -> object:
        model = next((value for value in (*args, *options.values()) if isinstance(value, torch.nn.Module)), None)
        if model is None:
            return function(*args, **options)
        args = tuple(_names_of_torch(model, value) for value in args)
        options = {key: _names_of_torch(model, value) for key, value in options.items()}
        values = (*args, *options.values())
        optimizer = next((value for value in values if isinstance(value, torch.optim.Optimizer)), None)
        absent = [parameter for layer in _old_layers(model) for parameter in layer.parameters_set_aside()]
        with as_in_torch(model, optimizer), _with_absent(optimizer, model, absent):
            return function(*args, **options)

    return renaming


@contextmanager
def _with_absent(
    optimizer: torch.optim.Optimizer | None, model: torch.nn.Module, absent: Sequence[torch.nn.Parameter]
) -> Iterator[None]:
    """Let an optimizer of a single group have the parameters that are none on this rank, as it has on others."""
    if optimizer is None or not absent or len(optimizer.param_groups) != 1:
        yield
        return
    own = optimizer.param_groups[0]["params"]
    all_of_them = {id(parameter) for parameter in (*own, *absent)}
    in_order = [parameter for parameter in model.parameters() if id(parameter) in all_of_them]
    optimizer.param_groups[0]["params"] = in_order
    try:
        yield
    finally:
        optimizer.param_groups[0]["params"] = own
        for parameter in absent:
            optimizer.state.pop(parameter, None)


def with_all_parameters(function: Callable[..., object]) -> Callable[..., object]:
    """The function, to which a model shows its parameters on all ranks alike."""

    @functools.wraps(function)
    def showing(model: object, *args: object, **options: object) -> object:
        with ExitStack() as shown:
            for layer in _old_layers(model):
                shown.enter_context(layer.with_all_parameters())
            return function(model, *args, **options)

    return showing


FUNCTIONS = {
    **dict.fromkeys(
        ("sequential_state_dict", "load_sequential", "sequential_gradients", "save", "load"), with_names_of_torch
    ),
    **dict.fromkeys(("clip_grad_norm_", "parameter_count"), with_all_parameters),
}
"""The forms that functions of this library take in classic mode, by name."""
