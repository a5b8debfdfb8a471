"""The states of an optimizer by the names of parameters. States in blocks are saved like their parameters."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from distdl.checkpoint.json_values import JSON, decoded, encoded, items_of, members_of
from distdl.checkpoint.stored import NAMES, StoredTensor, stored_in_blocks, stored_view, stored_whole
from distdl.parameters.layout import Layout
from distdl.partitions.comparison import agreed
from distdl.partitions.grid import Grid

PREFIX = "optimizer/"
_OF_SCHEDULES = {"base_momentum", "initial_lr", "max_lr", "max_momentum", "min_lr", "swa_lr"}
"""Options that learning rate schedules add to those of an optimizer."""


@dataclass
class SavedStates:
    """The states of an optimizer, for a file.

    Attributes:
        tensors: the states that are tensors.
        blocks: this rank's blocks of these tensors, by name in the file.
        metadata: the groups with their options, the other states, and the names of tensors whose shapes differ from
            their parameter's.
    """

    tensors: list[StoredTensor] = field(default_factory=list)
    blocks: dict[str, torch.Tensor] = field(default_factory=dict)
    metadata: dict[str, JSON] = field(default_factory=dict)


def parameter_names(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[list[str]]:
    """The names of the parameters of each group. Raises ValueError for a parameter that the model does not have."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise ValueError(
                    f"the optimizer has a parameter of shape {list(parameter.shape)} that is not one of the model's"
                )
    return [[known[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def collect_states(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, layouts: Mapping[str, Layout], all_ranks: Grid
) -> SavedStates:
    """The states of an optimizer for a file. An error of any rank is raised on all. Collective."""
    with agreed("save", all_ranks, lambda: ""):
        groups = parameter_names(optimizer, model)
        local_states = {
            name: optimizer.state[parameter]
            for name, parameter in model.named_parameters()
            if parameter in optimizer.state and parameter.numel()
        }
        description = json.dumps(_describe_states(local_states, dict(model.named_parameters()))).encode()
    views = [json.loads(view) for view in all_ranks.gather(description)]
    states, unlike = SavedStates(), []
    scalars: dict[str, dict[str, JSON]] = {}
    for name, parameter in model.named_parameters():
        source = next((rank_number for rank_number, view in enumerate(views) if name in view), None)
        if source is None:
            continue
        for key, (kind, *details) in views[source][name].items():
            stored = f"{PREFIX}{key}/{name}"
            if kind == "value":
                scalars.setdefault(name, {})[key] = details[0]
                continue
            if kind == "blocks" and name in layouts:
                states.tensors.append(stored_in_blocks(stored, DTYPES_BY_NAME[details[0]], layouts[name]))
            else:
                shape = list(parameter.shape) if kind == "blocks" else details[1]
                states.tensors.append(
                    stored_whole(stored, DTYPES_BY_NAME[details[0]], shape, all_ranks.ranks[source], all_ranks)
                )
            if kind == "whole":
                unlike.append(stored)
            if name in local_states:
                states.blocks[stored] = stored_view(local_states[name][key])
    options: list[JSON] = [
        {"params": list(names), "options": encoded({k: v for k, v in group.items() if k != "params"}, "optimizer", {})}
        for names, group in zip(groups, optimizer.param_groups, strict=True)
    ]
    states.metadata = {"groups": options, "values": {**scalars}, "unlike": list(unlike)}
    return states


DTYPES_BY_NAME = {str(dtype): dtype for dtype in (*NAMES, torch.complex128)}


def _describe_states(
    states: Mapping[str, Mapping[str, object]], parameters: Mapping[str, torch.Tensor]
) -> dict[str, dict[str, list[JSON]]]:
    described: dict[str, dict[str, list[JSON]]] = {}
    for name, state in states.items():
        described[name] = {}
        for key, value in state.items():
            if not isinstance(value, torch.Tensor) or (value.dim() == 0 and not value.is_complex()):
                tensors: dict[str, torch.Tensor] = {}
                described[name][key] = ["value", encoded(value, f"{PREFIX}{key}/{name}", tensors)]
                if tensors:
                    raise TypeError(f"the state {key} of the optimizer is a {type(value).__name__} of tensors")
            elif value.shape == parameters[name].shape:
                described[name][key] = ["blocks", str(value.dtype)]
            else:
                described[name][key] = ["whole", str(value.dtype), list(value.shape)]
    return described


def groups_problem(groups: JSON, expected: Sequence[Sequence[str]], renamed: Callable[[str], str | None]) -> str | None:
    """The difference between the groups in a file and the optimizer's; None if they are equal."""
    saved = [[renamed(str(name)) for name in items_of(members_of(group)["params"])] for group in items_of(groups)]
    if saved == [list(names) for names in expected]:
        return None
    return f"the optimizer has the groups of parameters {[list(names) for names in expected]}; the file has {saved}"


def loadable_state(
    optimizer: torch.optim.Optimizer,
    names: Sequence[Sequence[str]],
    metadata: Mapping[str, JSON],
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    renamed: Callable[[str], str | None],
) -> dict[str, object]:
    """The argument for ``optimizer.load_state_dict``.

    Args:
        names: the names of the parameters of each group.
        metadata: the optimizer's part of the file's metadata.
        tensors: the states that are tensors, by parameter and key. Their values may be read later.
        renamed: turns a name in the file into the name in the model.

    Raises:
        ValueError: if the file has the state of another kind of optimizer, if an option has another type than the
            optimizer's, or if the optimizer refuses the states.
    """
    values = {renamed(name): members_of(state) for name, state in members_of(metadata["values"]).items()}
    order = _parameter_numbers(names)
    state: dict[int, dict[str, object]] = {}
    for name, number in order.items():
        parameter_state: dict[str, object] = {key: decoded(item, {}) for key, item in values.get(name, {}).items()}
        parameter_state |= tensors.get(name, {})
        if parameter_state:
            state[number] = parameter_state
    groups = [
        {**{k: v for k, v in group.items() if k != "params"}, "params": [order[name] for name in in_group]}
        for group, in_group in zip(optimizer.param_groups, names, strict=True)
    ]
    for group, saved in zip(groups, items_of(metadata["groups"]), strict=False):
        options = members_of(members_of(saved)["options"])
        unknown, missing = options.keys() - group.keys() - _OF_SCHEDULES, optimizer.defaults.keys() - options.keys()
        if unknown and missing:  # another version of the same optimizer has more options or fewer
            raise ValueError(
                f"the file has the state of another optimizer, with {', '.join(sorted(unknown))} and without "
                f"{', '.join(sorted(missing))}; pass an optimizer of the saved kind, or none"
            )
        for key, value in options.items():
            option = decoded(value, {})
            if key in group and not _can_replace(option, group[key]):
                raise ValueError(
                    f"the option {key} of the optimizer is {option!r} in the file, and {group[key]!r} here"
                )
            group[key] = option
    result: dict[str, object] = {"state": state, "param_groups": groups}
    if type(optimizer).__module__.startswith("torch.optim"):  # a copy of any other may lack attributes
        try:
            copy.copy(optimizer).load_state_dict(result)
        except Exception as error:
            raise ValueError(f"the optimizer cannot take its states in the file: {error!r}") from None
    return result


def _parameter_numbers(names: Sequence[Sequence[str]]) -> dict[str, int]:
    return {name: number for number, name in enumerate(name for group in names for name in group)}


def _can_replace(option: object, current: object) -> bool:
    """Whether an option may replace the current value. Numbers, tensors and None may replace each other."""
    if isinstance(current, list | tuple):
        return (
            isinstance(option, list | tuple) and len(option) == len(current) and all(map(_can_replace, option, current))
        )
    plain = (bool, int, float, torch.Tensor, type(None))
    return isinstance(option, plain) if isinstance(current, plain) else isinstance(option, type(current))


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Sequence[Sequence[str]],
    loadable: dict[str, object],
    dtypes: Mapping[str, torch.dtype],
) -> None:
    """Give an optimizer the result of :func:`loadable_state`. ``dtypes``: in the file, by name in the model."""
    optimizer.load_state_dict(loadable)
    # torch has cast all states to the dtype of their parameter. States that had another dtype would give other steps.
    state: dict[int, dict[str, object]] = loadable["state"]  # type: ignore[assignment]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, number in _parameter_numbers(names).items():
        loaded = optimizer.state.get(parameters[number], {})
        for key, value in state.get(number, {}).items():
            cast = loaded.get(key)
            if isinstance(value, torch.Tensor) and isinstance(cast, torch.Tensor):
                loaded[key] = value.to(cast.device) if value.dtype != dtypes.get(name, value.dtype) else cast
