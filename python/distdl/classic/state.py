"""Functions of this library that take a model, for models with old names of parameters, or with ranks without any."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch

from distdl.classic.keys import OldLayer, as_in_torch


def _old_layers(model: object) -> list[OldLayer]:
    return [one for one in model.modules() if isinstance(one, OldLayer)] if isinstance(model, torch.nn.Module) else []


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
        absent = [one for layer in _old_layers(model) for one in layer.parameters_set_aside()]
        with as_in_torch(model, optimizer), _with_absent(optimizer, model, absent):
            return function(*args, **more)

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
    all_of_them = {id(one) for one in (*own, *absent)}
    optimizer.param_groups[0]["params"] = [one for one in model.parameters() if id(one) in all_of_them]
    try:
        yield
    finally:
        optimizer.param_groups[0]["params"] = own
        for one in absent:
            optimizer.state.pop(one, None)


def with_all_parameters(function: Callable[..., object]) -> Callable[..., object]:
    """The function, to which a model shows its parameters on all ranks alike."""

    @functools.wraps(function)
    def showing(model: object, *args: object, **more: object) -> object:
        with ExitStack() as shown:
            for one in _old_layers(model):
                shown.enter_context(one.with_all_parameters())
            return function(model, *args, **more)

    return showing


FUNCTIONS = {
    **dict.fromkeys(
        ("sequential_state_dict", "load_sequential", "sequential_gradients", "save", "load"), with_names_of_torch
    ),
    **dict.fromkeys(("clip_grad_norm_", "parameter_count"), with_all_parameters),
}
"""What classic mode makes of functions of this library, by name."""
