"""Weights between a sequential model and a distributed one, both ways."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

import torch

from distdl import operators
from distdl.collective.construction import constructing
from distdl.collective.grid import Grid
from distdl.nn.module import Module
from distdl.parameters.layout import Layout
from distdl.structure import zero_volume_tensor


def _layouts(model: torch.nn.Module) -> dict[str, Layout]:
    """The layouts of all parameters and buffers that live in blocks, by their names in the model's state_dict."""
    return {
        f"{prefix}.{name}" if prefix else name: layout
        for prefix, module in model.named_modules()
        if isinstance(module, Module)
        for name, layout in module.layouts.items()
    }


def _everyone(layouts: Mapping[str, Layout]) -> Grid:
    """All ranks of the communicator that a model's partitions come from; unknown on ranks outside of it.

    If layers are on different bare communicators, these are the ranks of the largest one.
    """
    widest = max((layout.grid for layout in layouts.values()), key=lambda grid: len(grid.constructors))
    return widest.constructing_ranks()


def _check_root(what: str, root: int, everyone: Grid, layouts: Mapping[str, Layout]) -> None:
    for known in (everyone.ranks, *(layout.grid.constructors for layout in layouts.values())):
        if known and root not in known:
            raise ValueError(f"{what}: root {root} is none of the ranks {list(known)} of the model's partitions")


def _check_undeclared(what: str, model: torch.nn.Module, everyone: Grid, layouts: Mapping[str, Layout]) -> None:
    """Refuse tensors that differ among the ranks although no layout describes them. Collective over everyone.

    A tensor of one of torch's modules counts as whole if its shape is the same on all ranks. A tensor of a module over
    partitions must have the same values, too: if it is a block, the module has to declare it.
    """
    ours = [prefix for prefix, module in model.named_modules() if isinstance(module, Module)]
    seen = {}
    for name, value in model.state_dict().items():
        if name in layouts:
            continue
        owner = name.rpartition(".")[0].partition("parametrizations.")[0].rstrip(".")
        seen[name] = [str(value.dtype), list(value.shape), _checksum(value) if owner in ours else 0]
    views = [json.loads(view) for view in everyone.gather(json.dumps(seen).encode())]
    for name, here in views[0].items():
        other = next((rank for rank, view in zip(everyone.ranks, views, strict=True) if view[name] != here), None)
        if other is None:
            continue
        there = views[everyone.ranks.index(other)][name]
        differs = "shapes" if here[:2] != there[:2] else "values"
        raise ValueError(
            f"{what}: {name} has other {differs} on rank {other} (shape {there[1]}) than on rank {everyone.ranks[0]} "
            f"(shape {here[1]}), and no layout says how they make up a whole. A tensor in blocks has to be declared "
            "(distdl.nn.Module.declare_parameter). A parametrized parameter of a distributed layer cannot be declared"
        )


def _checksum(value: torch.Tensor) -> int:
    flat = value.detach().resolve_conj().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else 0


def _to_root(layout: Layout, block: torch.Tensor, root: int) -> torch.Tensor:
    """The whole tensor on rank ``root``, zero volume elsewhere."""
    storage, _ = layout.storage
    mine = block if storage.active else zero_volume_tensor(dtype=block.dtype)
    return operators.repartition(storage, layout.grid.related((root,), (1,) * len(layout.shape)))(mine)


def _from_root(layout: Layout, whole: torch.Tensor, root: int) -> torch.Tensor:
    """This rank's part of a tensor that rank ``root`` has whole."""
    storage, intervals = layout.storage
    scatter = operators.interval_exchange(
        "load_sequential", layout.grid.related((root,), (1,) * len(layout.shape)), storage, intervals
    )
    block = scatter(whole)
    if layout.kind == "replicated" and layout.users > 1:
        owned = block if layout.owners.active else zero_volume_tensor(dtype=block.dtype)
        block = operators.broadcast(layout.owners, layout.grid)(owned)
    return block.reshape(layout.local_shape)


@torch.no_grad()
def sequential_state_dict(model: torch.nn.Module, root: int = 0) -> dict[str, torch.Tensor]:
    """The state of the sequential twin of a model: whole parameters, under the same names.

    Args:
        model: a distributed layer, or a model with distributed and other layers.
        root: the rank that receives the state, counted in the communicator that the partitions come from.

    Returns:
        On rank ``root`` a state that ``load_state_dict`` of the sequential model takes; an empty dict on all other
        ranks.

    Raises:
        ValueError: on all ranks, if ``root`` is not a rank of the partitions, if the ranks pass different roots or
            models, or if the model has a tensor in blocks that is not declared
            (:meth:`distdl.nn.Module.declare_parameter`).

    Collective over the communicator that the partitions come from. If no parameter of the model is distributed, there
    is no such communicator: each calling rank receives the model's state.
    """
    layouts, own = _layouts(model), model.state_dict()
    if not layouts:
        return {name: value.clone() for name, value in own.items()}
    everyone = _everyone(layouts)
    if not everyone.known:
        return {}
    with constructing("sequential_state_dict", {"ranks": everyone}, {"root": root, "names": list(own)}):
        _check_root("sequential_state_dict", root, everyone, layouts)
    _check_undeclared("sequential_state_dict", model, everyone, layouts)
    state = {}
    for name, value in own.items():
        if name not in layouts:
            state[name] = value.clone()
        elif layouts[name].grid.known:
            state[name] = _to_root(layouts[name], value, root)
    return state if everyone.me == root else {}


@torch.no_grad()
def load_sequential(
    model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor] | None = None, root: int = 0
) -> None:
    """Load the state of the sequential twin of a model into it: each rank receives its blocks.

    Args:
        model: a distributed layer, or a model with distributed and other layers.
        state_dict: the sequential model's state; needed on rank ``root`` only.
        root: the rank that has the state, counted in the communicator that the partitions come from.

    Raises:
        RuntimeError: on all ranks, if names are missing or unknown, or shapes differ. Nothing is loaded then.
        ValueError: on all ranks, if ``root`` is not a rank of the partitions, if the ranks pass different roots or
            models, or if the model has a tensor in blocks that is not declared.

    Collective over the communicator that the partitions come from. If no parameter of the model is distributed, there
    is no such communicator: each rank has to call it with the state.
    """
    layouts, own = _layouts(model), model.state_dict()
    shapes = {name: list(layouts[name].shape if name in layouts else value.shape) for name, value in own.items()}
    if not layouts:
        _check(shapes, state_dict or {})
        model.load_state_dict(dict(state_dict or {}))
        return
    everyone = _everyone(layouts)
    if not everyone.known:
        return
    given: dict[str, torch.Tensor] = {}
    with constructing("load_sequential", {"ranks": everyone}, {"root": root, "names": list(own)}):
        _check_root("load_sequential", root, everyone, layouts)
    _check_undeclared("load_sequential", model, everyone, layouts)
    with constructing("load_sequential", {"ranks": everyone}, {"shapes": shapes}):
        if everyone.me == root:
            given = dict(state_dict or {})
            _check(shapes, given)

    for name, value in own.items():
        whole = given[name].to(value.dtype) if everyone.me == root else zero_volume_tensor(dtype=value.dtype)
        if name not in layouts:
            value.copy_(operators.broadcast(everyone.line((root,)), everyone)(whole))
        elif layouts[name].grid.known:
            block = _from_root(layouts[name], whole, root)
            if block.numel():
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
