"""Weights between a sequential model and a distributed one, both ways."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from distdl import primitives
from distdl.construction import constructing
from distdl.nn.module import Module
from distdl.parameters import Layout
from distdl.partition import Partition
from distdl.structure import zero_volume_tensor


def _layouts(model: torch.nn.Module) -> dict[str, Layout]:
    """The layouts of all distributed parameters, by their names in the model's state_dict."""
    return {
        f"{prefix}.{name}" if prefix else name: layout
        for prefix, module in model.named_modules()
        if isinstance(module, Module)
        for name, layout in module._distdl_layouts.items()
    }


def _one_rank(layout: Layout, root: int) -> Partition:
    """The partition in which rank ``root`` has the whole parameter."""
    return layout.partition._related((root,), (1,) * len(layout.shape))


def _everyone(layouts: Mapping[str, Layout]) -> Partition | None:
    """All ranks of the communicator that a model's partitions come from; None on ranks outside of it.

    Where layers are on bare communicators, these are the ranks of the layer that has most of them.
    """
    widest = max((layout.partition for layout in layouts.values()), key=lambda partition: len(partition._voters))
    return None if widest._root is None else widest._line(widest._voters)


def _check_root(what: str, root: int, everyone: Partition, layouts: Mapping[str, Layout]) -> None:
    for known in (everyone._ranks, *(layout.partition._voters for layout in layouts.values())):
        if known and root not in known:
            raise ValueError(f"{what}: root {root} is none of the ranks {list(known)} of the model's partitions")


@torch.no_grad()
def sequential_state_dict(model: torch.nn.Module, root: int = 0) -> dict[str, torch.Tensor]:
    """The state of the sequential twin of a model: whole parameters, under the same names.

    Args:
        model: a distributed layer, or a model with distributed and other layers.
        root: the rank that receives it, of the communicator that the partitions come from.

    Returns:
        On rank ``root`` what ``load_state_dict`` of the sequential model takes; an empty dict on all other ranks.

    Raises:
        ValueError: on all ranks, if ``root`` is none of them, or the ranks differ in it or in the model.

    Collective over the communicator that the partitions come from. A model without distributed parameters has none: its
    state is returned where it is asked for.
    """
    layouts, own = _layouts(model), model.state_dict()
    if not layouts:
        return {name: value.clone() for name, value in own.items()}
    everyone = _everyone(layouts)
    if everyone is None:
        return {}
    with constructing("sequential_state_dict", {"ranks": everyone}, {"root": root, "names": list(own)}):
        _check_root("sequential_state_dict", root, everyone, layouts)
    state = {}
    for name, value in own.items():
        if name not in layouts:
            state[name] = value.clone()
        elif layouts[name].partition._root is not None:
            state[name] = primitives.repartition(layouts[name].partition, _one_rank(layouts[name], root))(value)
    return state if everyone._ranks[everyone.rank] == root else {}


@torch.no_grad()
def load_sequential(
    model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor] | None = None, root: int = 0
) -> None:
    """Load the state of the sequential twin of a model into it: each rank receives its blocks.

    Args:
        model: a distributed layer, or a model with distributed and other layers.
        state_dict: the sequential model's; needed on rank ``root`` only.
        root: the rank that has it, of the communicator that the partitions come from.

    Raises:
        RuntimeError: on all ranks, if names are missing or unknown, or shapes differ. Nothing is loaded then.
        ValueError: on all ranks, if ``root`` is none of them, or the ranks differ in it or in the model.

    Collective over the communicator that the partitions come from. A model without distributed parameters has none: it
    needs its state on every rank.
    """
    layouts, own = _layouts(model), model.state_dict()
    shapes = {name: list(layouts[name].shape if name in layouts else value.shape) for name, value in own.items()}
    if not layouts:
        _check(shapes, state_dict or {})
        model.load_state_dict(dict(state_dict or {}))
        return
    everyone = _everyone(layouts)
    if everyone is None:
        return
    at_root = everyone._ranks[everyone.rank] == root
    given: dict[str, torch.Tensor] = {}
    with constructing("load_sequential", {"ranks": everyone}, {"root": root, "shapes": shapes}):
        _check_root("load_sequential", root, everyone, layouts)
        if at_root:
            given = dict(state_dict or {})
            _check(shapes, given)

    for name, value in own.items():
        whole = given[name].to(value.dtype) if at_root else zero_volume_tensor(dtype=value.dtype)
        if name not in layouts:
            value.copy_(primitives.broadcast(everyone._line((root,)), everyone)(whole))
        elif layouts[name].partition._root is not None:
            partition = layouts[name].partition
            block = primitives.repartition(_one_rank(layouts[name], root), partition)(whole)
            if partition.active:
                value.copy_(block)


def _check(shapes: Mapping[str, list[int]], given: Mapping[str, torch.Tensor]) -> None:
    problems = [f"missing {name}" for name in shapes if name not in given]
    problems += [f"unknown {name}" for name in given if name not in shapes]
    for name, shape in shapes.items():
        if name in given and not isinstance(given[name], torch.Tensor):
            problems.append(f"{name} is of type {type(given[name]).__name__}; it has to be a torch.Tensor")
        elif name in given and list(given[name].shape) != shape:
            problems.append(f"{name} has shape {list(given[name].shape)}; the model has {shape}")
    if problems:
        raise RuntimeError("load_sequential: " + "; ".join(problems))
