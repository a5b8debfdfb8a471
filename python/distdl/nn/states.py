"""The state of a model: its tensors, and the extra state that modules keep beside them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_KEY = "_extra_state"  # under which torch's state_dict() has what get_extra_state() gives


def is_extra(name: str) -> bool:
    """Whether a name in a state is that of a module's extra state."""
    return name.rpartition(".")[2] == _KEY


def name_in_state(name: str) -> str:
    """The name in a state_dict of what has a name in ``named_parameters()``.

    Wrappers of ``torch.distributed.algorithms`` for activation checkpoints leave their own name out of the state.
    """
    return name.replace("_checkpoint_wrapped_module.", "")


def tensors_in_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by their names in the state, whatever a class's own ``state_dict()`` adds."""
    found: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        parameters, buffers, left_out = (
            vars(module)[held] for held in ("_parameters", "_buffers", "_non_persistent_buffers_set")
        )
        for name, one in (*parameters.items(), *buffers.items()):
            if one is not None and name not in left_out:
                found[name_in_state(f"{path}.{name}".removeprefix("."))] = one
    return found


def extra_states(model: torch.nn.Module) -> dict[str, object]:
    """The results of ``get_extra_state()`` of modules, by the names in a state."""
    return {name: module.get_extra_state() for name, module in _with_extra_state(model).items()}


def set_extra_states(model: torch.nn.Module, states: Mapping[str, object]) -> None:
    """Give modules their extra states."""
    modules = _with_extra_state(model)
    for name, state in states.items():
        modules[name].set_extra_state(state)


def _with_extra_state(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    found = {}
    for path, module in model.named_modules():
        wrapped = vars(module).get("module")  # a layer of ours that does what a module of torch does
        one = wrapped if isinstance(wrapped, torch.nn.Module) else module
        if type(one).get_extra_state is not torch.nn.Module.get_extra_state:
            found[f"{path}.{_KEY}".removeprefix(".")] = one
    return found
