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


@torch.no_grad()
def sequential_state_dict(model: torch.nn.Module, root: int = 0) -> dict[str, torch.Tensor]:
    """The state of the sequential twin of a model: whole parameters, under the same names.

    Args:
        model: a distributed layer, or a model with distributed and other layers.
        root: the rank, of the communicator that the partitions come from, that receives it.

    Returns:
        On rank ``root`` what ``load_state_dict`` of the sequential model takes; an empty dict on all other ranks.

    Collective over the communicator that the partitions come from.
    """
    layouts = _layouts(model)
    state = {}
    at_root = True
    for name, value in model.state_dict().items():
        if name not in layouts:
            state[name] = value.clone()
            continue
        layout = layouts[name]
        if layout.partition._root is None:
            return {}
        at_root = layout.partition._root.Get_rank() == root
        state[name] = primitives.repartition(layout.partition, _one_rank(layout, root))(value)
    return state if at_root else {}


@torch.no_grad()
def load_sequential(
    model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor] | None = None, root: int = 0
) -> None:
    """Load the state of the sequential twin of a model into it: each rank receives its blocks.

    Args:
        model: a distributed layer, or a model with distributed and other layers.
        state_dict: the sequential model's; needed on rank ``root`` only.
        root: the rank, of the communicator that the partitions come from, that has it.

    Raises:
        RuntimeError: on all ranks, if names are missing or unknown, or shapes differ. Nothing is loaded then.

    Collective over the communicator that the partitions come from.
    """
    layouts = {name: layout for name, layout in _layouts(model).items() if layout.partition._root is not None}
    if not layouts:
        if not any(isinstance(module, Module) and module._distdl_layouts for module in model.modules()):
            model.load_state_dict(dict(state_dict or {}))
        return
    origin = next(iter(layouts.values())).partition
    own = model.state_dict()
    at_root = origin._root is not None and origin._root.Get_rank() == root
    given = dict(state_dict or {}) if at_root else {}
    with constructing("load_sequential", {"origin": origin._related(origin._voters, (len(origin._voters),))}, {}):
        if at_root:
            _check(own, layouts, given)

    everyone = origin._related(origin._voters, (len(origin._voters),))
    for name, value in own.items():
        layout = layouts.get(name)
        whole = given[name].to(value.dtype) if at_root else zero_volume_tensor(dtype=value.dtype)
        if layout is not None:
            block = primitives.repartition(_one_rank(layout, root), layout.partition)(whole)
            if layout.partition.active:
                value.copy_(block)
        else:
            value.copy_(primitives.broadcast(origin._related((root,), (1,)), everyone)(whole))


def _check(own: Mapping[str, torch.Tensor], layouts: Mapping[str, Layout], given: Mapping[str, torch.Tensor]) -> None:
    problems = [f"missing {name}" for name in own if name not in given]
    problems += [f"unknown {name}" for name in given if name not in own]
    for name in own:
        expected = layouts[name].shape if name in layouts else tuple(own[name].shape)
        if name in given and tuple(given[name].shape) != expected:
            problems.append(f"{name} has shape {tuple(given[name].shape)}; the model has {expected}")
    if problems:
        raise RuntimeError("load_sequential: " + "; ".join(problems))
