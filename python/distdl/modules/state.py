"""The state of a model: its tensors, and the extra state of modules."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_KEY = "_extra_state"  # the key of get_extra_state()'s result in state_dict()


def is_extra(name: str) -> bool:
    """Whether a name in a state belongs to a module's extra state."""
    return name.rpartition(".")[2] == _KEY


def name_in_state(name: str) -> str:
    """Translate a name from ``named_parameters()`` into the ``state_dict()`` name.

    Wrappers of ``torch.distributed.algorithms`` for activation checkpoints omit their own name in the state.
    """
    return name.replace("_checkpoint_wrapped_module.", "")


def tensors_in_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by their names in the state, whatever an own ``state_dict()`` adds."""
    tensors: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        parameters, buffers, left_out = (
            vars(module)[held] for held in ("_parameters", "_buffers", "_non_persistent_buffers_set")
        )
        for name, tensor in (*parameters.items(), *buffers.items()):
            if tensor is not None and name not in left_out:
                tensors[name_in_state(f"{path}.{name}".removeprefix("."))] = tensor
    return tensors


def extra_states(model: torch.nn.Module) -> dict[str, object]:
    """The results of modules' ``get_extra_state()``, by their names in the state."""
    return {name: module.get_extra_state() for name, module in _with_extra_state(model).items()}


def set_extra_states(model: torch.nn.Module, states: Mapping[str, object]) -> None:
    """Set the extra states of modules."""
    modules = _with_extra_state(model)
    for name, state in states.items():
        modules[name].set_extra_state(state)


def _with_extra_state(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    modules = {}
    for path, module in model.named_modules():
        wrapped = vars(module).get("module")  # a layer around a module of torch
        owner = wrapped if isinstance(wrapped, torch.nn.Module) else module
        if type(owner).get_extra_state is not torch.nn.Module.get_extra_state:
            modules[f"{path}.{_KEY}".removeprefix(".")] = owner
    return modules
