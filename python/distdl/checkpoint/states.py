"""The states of an optimizer by the names of parameters: what lives in blocks like a parameter is saved like one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from distdl.checkpoint.stored import NAMES, Stored, as_stored, in_blocks, whole_on
from distdl.checkpoint.values import JSON, decoded, encoded, items_of, members_of
from distdl.collective.comparison import agreed
from distdl.collective.grid import Grid
from distdl.parameters.layout import Layout

PREFIX = "optimizer/"


@dataclass
class States:
    """The states of an optimizer, for a file.

    Attributes:
        tensors: those that are tensors, whole.
        blocks: what this rank has of them, by name in the file.
        metadata: groups of parameters with their options; the other states by parameter and key; and the names in the
            file of those tensors that are not like their parameter.
    """

    tensors: list[Stored] = field(default_factory=list)
    blocks: dict[str, torch.Tensor] = field(default_factory=dict)
    metadata: dict[str, JSON] = field(default_factory=dict)


def names_in(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[list[str]]:
    """The names of the parameters of each group. Raises ValueError for a parameter that the model does not have."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise ValueError(
                    f"the optimizer has a parameter of shape {list(parameter.shape)} that is not one of the model's"
                )
    return [[known[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def saved_states(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, layouts: Mapping[str, Layout], everyone: Grid
) -> States:
    """The state of an optimizer as a file holds it. All ranks raise the error of any rank. Collective over everyone."""
    with agreed("save", everyone, lambda: ""):
        groups = names_in(optimizer, model)
        own = {
            name: optimizer.state[parameter]
            for name, parameter in model.named_parameters()
            if parameter in optimizer.state and parameter.numel()
        }
        described = json.dumps(_described(own, dict(model.named_parameters()))).encode()
    views = [json.loads(view) for view in everyone.gather(described)]
    states, unlike = States(), []
    scalars: dict[str, dict[str, JSON]] = {}
    for name, parameter in model.named_parameters():
        source = next((at for at, view in enumerate(views) if name in view), None)
        if source is None:
            continue
        for key, (kind, *of) in views[source][name].items():
            stored = f"{PREFIX}{key}/{name}"
            if kind == "value":
                scalars.setdefault(name, {})[key] = of[0]
                continue
            if kind == "blocks" and name in layouts:
                states.tensors.append(in_blocks(stored, DTYPES_BY_NAME[of[0]], layouts[name]))
            else:
                shape = list(parameter.shape) if kind == "blocks" else of[1]
                states.tensors.append(whole_on(stored, DTYPES_BY_NAME[of[0]], shape, everyone.ranks[source], everyone))
            if kind == "whole":
                unlike.append(stored)
            if name in own:
                states.blocks[stored] = as_stored(own[name][key])
    options: list[JSON] = [
        {"params": list(names), "options": encoded({k: v for k, v in group.items() if k != "params"}, "optimizer", {})}
        for names, group in zip(groups, optimizer.param_groups, strict=True)
    ]
    states.metadata = {"groups": options, "values": {**scalars}, "unlike": list(unlike)}
    return states


DTYPES_BY_NAME = {str(dtype): dtype for dtype in (*NAMES, torch.complex128)}


def _described(
    states: Mapping[str, Mapping[str, object]], parameters: Mapping[str, torch.Tensor]
) -> dict[str, dict[str, list[JSON]]]:
    """Describe the state that this rank has of each parameter, by key."""
    found: dict[str, dict[str, list[JSON]]] = {}
    for name, state in states.items():
        found[name] = {}
        for key, value in state.items():
            if not isinstance(value, torch.Tensor) or (value.dim() == 0 and not value.is_complex()):
                within: dict[str, torch.Tensor] = {}
                found[name][key] = ["value", encoded(value, f"{PREFIX}{key}/{name}", within)]
                if within:
                    raise TypeError(f"the state {key} of the optimizer is a {type(value).__name__} of tensors")
            elif value.shape == parameters[name].shape:
                found[name][key] = ["blocks", str(value.dtype)]
            else:
                found[name][key] = ["whole", str(value.dtype), list(value.shape)]
    return found


def unfit_groups(groups: JSON, expected: Sequence[Sequence[str]], renamed: Callable[[str], str | None]) -> str | None:
    """Why the groups of a file are not those of an optimizer; None if they are."""
    saved = [[renamed(str(name)) for name in items_of(members_of(group)["params"])] for group in items_of(groups)]
    if saved == [list(names) for names in expected]:
        return None
    return f"the optimizer has the groups of parameters {[list(names) for names in expected]}; the file has {saved}"


def states_for(
    optimizer: torch.optim.Optimizer,
    names: Sequence[Sequence[str]],
    metadata: Mapping[str, JSON],
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    renamed: Callable[[str], str | None],
) -> dict[str, object]:
    """The argument for ``optimizer.load_state_dict``.

    Args:
        optimizer: the optimizer, which stays as it is.
        names: of the parameters of each of its groups.
        metadata: what those of the file say of an optimizer.
        tensors: memory of the states that are tensors, by parameter and key. Their values may be read later.
        renamed: the name in the model of a name in the file.

    Raises:
        ValueError: if the file has an option of another kind than the optimizer's, or states that a copy of it refuses.
    """
    values = {renamed(name): members_of(state) for name, state in members_of(metadata["values"]).items()}
    order = _numbered(names)
    state: dict[int, dict[str, object]] = {}
    for name, number in order.items():
        own: dict[str, object] = {key: decoded(one, {}) for key, one in values.get(name, {}).items()}
        own |= tensors.get(name, {})
        if own:
            state[number] = own
    groups = [
        {**{k: v for k, v in group.items() if k != "params"}, "params": [order[name] for name in in_group]}
        for group, in_group in zip(optimizer.param_groups, names, strict=True)
    ]
    for group, saved in zip(groups, items_of(metadata["groups"]), strict=False):
        for key, value in members_of(members_of(saved)["options"]).items():
            option = decoded(value, {})
            if key in group and not _alike(option, group[key]):
                raise ValueError(
                    f"the option {key} of the optimizer is {option!r} in the file, and {group[key]!r} here"
                )
            group[key] = option
    found: dict[str, object] = {"state": state, "param_groups": groups}
    if type(optimizer).__module__.startswith("torch.optim"):  # a copy of any other may lack attributes
        try:
            copy.copy(optimizer).load_state_dict(found)
        except Exception as error:
            raise ValueError(f"the optimizer cannot take its states in the file: {error!r}") from None
    return found


def _numbered(names: Sequence[Sequence[str]]) -> dict[str, int]:
    return {name: number for number, name in enumerate(name for group in names for name in group)}


def _alike(option: object, own: object) -> bool:
    """Whether an option may stand in place of another. A number may stand for a tensor, and None for a number."""
    if isinstance(own, list | tuple):
        return isinstance(option, list | tuple) and len(option) == len(own) and all(map(_alike, option, own))
    plain = (bool, int, float, torch.Tensor, type(None))
    return isinstance(option, plain) if isinstance(own, plain) else isinstance(option, type(own))


def load_states(
    optimizer: torch.optim.Optimizer,
    names: Sequence[Sequence[str]],
    found: dict[str, object],
    dtypes: Mapping[str, torch.dtype],
) -> None:
    """Give an optimizer the states of a file.

    Args:
        optimizer: the optimizer.
        names: of the parameters of each of its groups.
        found: what :func:`states_for` returned.
        dtypes: of the parameters in the file, by their names in the model.
    """
    optimizer.load_state_dict(found)
    # torch has cast all states to the dtype of their parameter. Those that had another one would take other steps.
    state: dict[int, dict[str, object]] = found["state"]  # type: ignore[assignment]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, number in _numbered(names).items():
        loaded = optimizer.state.get(parameters[number], {})
        for key, value in state.get(number, {}).items():
            cast = loaded.get(key)
            if isinstance(value, torch.Tensor) and isinstance(cast, torch.Tensor):
                loaded[key] = value.to(cast.device) if value.dtype != dtypes.get(name, value.dtype) else cast
