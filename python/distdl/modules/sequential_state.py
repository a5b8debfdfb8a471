"""Weights and gradients between a sequential model and a distributed model."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Mapping

import torch

from distdl import operators
from distdl.modules.layout_lookup import model_call
from distdl.modules.layouts import (
    check_module,
    check_undeclared,
    layouts_of,
    ranks_of,
    sources_of_gradients,
)
from distdl.modules.state import extra_states, is_extra, name_in_state, set_extra_states, tensors_in_state
from distdl.parameters.layout import Layout
from distdl.partitions.boxes import box_shape
from distdl.partitions.comparison import agreed, gather_or_raise
from distdl.partitions.construction import constructing
from distdl.partitions.grid import Grid
from distdl.partitions.structure import zero_volume_tensor


def _whole_shapes(tensors: Mapping[str, torch.Tensor], layouts: Mapping[str, Layout]) -> dict[str, list[int]]:
    return {
        name: list(layouts[name].whole_shape if name in layouts else value.shape) for name, value in tensors.items()
    }


def _check_root(operation: str, root: int, all_ranks: Grid, layouts: Mapping[str, Layout]) -> None:
    for ranks in (all_ranks.ranks, *(layout.grid.constructors for layout in layouts.values())):
        if ranks and root not in ranks:
            raise ValueError(f"{operation}: root {root} is none of the ranks {list(ranks)} of the model's partitions")


def _gather_to_root(layout: Layout, block: torch.Tensor, root: int) -> torch.Tensor:
    """The whole tensor on rank ``root``, zero volume elsewhere."""
    storage, _ = layout.storage
    stored = zero_volume_tensor(dtype=block.dtype)
    if storage.active and layout.intervals is not None:
        stored = block.reshape(box_shape(layout.intervals))
    whole = operators.repartition(storage, layout.grid.related((root,), (1,) * len(layout.shape)))(stored)
    return whole.reshape(layout.whole_shape) if layout.grid.me == root else whole


def _scatter_from_root(layout: Layout, whole: torch.Tensor, root: int) -> torch.Tensor:
    """This rank's part of a tensor that is whole on rank ``root``."""
    storage, intervals = layout.storage
    scatter = operators.interval_exchange(
        "load_sequential", layout.grid.related((root,), (1,) * len(layout.shape)), storage, intervals
    )
    block = scatter(whole.reshape(layout.shape) if layout.grid.me == root else whole)
    if layout.kind == "replicated" and layout.replicas > 1:
        owned = block if layout.owner_grid.active else zero_volume_tensor(dtype=block.dtype)
        block = operators.broadcast(layout.owner_grid, layout.grid)(owned)
    return block.reshape(layout.local_shape)


@torch.no_grad()
@model_call
def sequential_state_dict(model: torch.nn.Module, root: int = 0) -> dict[str, torch.Tensor]:
    """The state of the sequential twin of a model: whole parameters, under the same names.

    Args:
        model: any model.
        root: the rank that receives the state, in the communicator that the partitions come from.

    Returns:
        On rank ``root`` a state for ``load_state_dict`` of the sequential model; an empty dict on all other ranks.

    Raises:
        ValueError: on all ranks, if ``root`` is not a rank of the partitions, if roots or models differ, or if a
            tensor in blocks is not declared (:meth:`distdl.nn.Module.declare_parameter`).

    Collective over the communicator that the partitions come from. If no parameter is distributed, each calling rank
    receives the model's state.
    """
    check_module("sequential_state_dict", model)
    layouts = layouts_of(model)
    if not layouts:
        return {name: value.clone() for name, value in tensors_in_state(model).items()} | extra_states(model)
    all_ranks = ranks_of(layouts.values())
    if not all_ranks.known:
        return {}
    compared: dict[str, object] = {"root": root}
    with constructing("sequential_state_dict", {"ranks": all_ranks}, compared):
        tensors, extra = tensors_in_state(model), extra_states(model)
        compared["names"] = [*tensors, *extra]
        _check_root("sequential_state_dict", root, all_ranks, layouts)
    check_undeclared("sequential_state_dict", model, all_ranks, layouts)
    state = {}
    for name, value in tensors.items():
        if name not in layouts:
            state[name] = value.clone()
        elif layouts[name].grid.known:
            state[name] = _gather_to_root(layouts[name], value, root)
    return state | extra if all_ranks.me == root else {}


@torch.no_grad()
@model_call
def sequential_gradients(model: torch.nn.Module, root: int = 0) -> dict[str, torch.Tensor]:
    """The gradients of the sequential twin of a model: of whole parameters, under the same names.

    Args:
        model: any model.
        root: the rank that receives the gradients, in the communicator that the partitions come from.

    Returns:
        On rank ``root`` the gradients by the names of ``named_parameters()``; an empty dict on all other ranks.

    Raises:
        ValueError: on all ranks, as :func:`sequential_state_dict`; or if the gradients of a parameter that no layer
            declared differ.

    Collective over the communicator that the partitions come from. If no parameter is distributed, each calling rank
    receives the model's gradients.
    """
    check_module("sequential_gradients", model)
    layouts, parameters = layouts_of(model), dict(model.named_parameters())
    local = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    if not layouts:
        return {name: gradient.to_dense().clone() for name, gradient in local.items()}
    all_ranks = ranks_of(layouts.values())
    if not all_ranks.known:
        return {}
    with constructing("sequential_gradients", {"ranks": all_ranks}, {"root": root, "names": list(parameters)}):
        local = {name: gradient.to_dense() for name, gradient in local.items()}
        _check_root("sequential_gradients", root, all_ranks, layouts)
    check_undeclared("sequential_gradients", model, all_ranks, layouts)
    undeclared = [name for name in parameters if name_in_state(name) not in layouts]
    sources = sources_of_gradients(local, undeclared, all_ranks)
    gradients = {}
    for name, parameter in parameters.items():
        if name not in sources:
            continue
        block = local.get(name, torch.zeros_like(parameter))
        layout = layouts.get(name_in_state(name)) or Layout(
            all_ranks.line((sources[name],)), tuple(block.shape), (None,) * block.dim()
        )
        if layout.grid.known:
            gradients[name] = _gather_to_root(layout, block, root)
    return gradients if all_ranks.me == root else {}


@torch.no_grad()
@model_call
def load_sequential(
    model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor] | None = None, root: int = 0
) -> None:
    """Load the state of the sequential twin of a model: each rank receives its blocks.

    Args:
        model: any model.
        state_dict: the sequential model's state, on rank ``root``.
        root: the rank that has the state, in the communicator that the partitions come from.

    Raises:
        RuntimeError: on all ranks, if names are missing or unknown, if shapes differ, or if a value is not a dense
            tensor that converts to the model's dtype. Nothing is written then.
        ValueError: on all ranks, as :func:`sequential_state_dict`.

    Collective over the communicator that the partitions come from. If no parameter is distributed, each rank has to
    call it with the state.
    """
    check_module("load_sequential", model)
    layouts = layouts_of(model)
    if not layouts:
        _check_state(_whole_shapes(tensors_in_state(model), layouts), extra_states(model), state_dict or {})
        model.load_state_dict(dict(state_dict or {}))
        return
    all_ranks = ranks_of(layouts.values())
    if not all_ranks.known:
        return
    converted: dict[str, torch.Tensor] = {}
    compared: dict[str, object] = {"root": root}
    with constructing("load_sequential", {"ranks": all_ranks}, compared):
        tensors, extra = tensors_in_state(model), extra_states(model)
        compared["names"] = [*tensors, *extra]
        _check_root("load_sequential", root, all_ranks, layouts)
    check_undeclared("load_sequential", model, all_ranks, layouts)
    shapes = _whole_shapes(tensors, layouts)
    with constructing("load_sequential", {"ranks": all_ranks}, {"shapes": shapes}):
        _check_writable(tensors)
        if all_ranks.me == root:
            state = dict(state_dict or {})
            _check_state(shapes, extra, state)
            extra = {name: state[name] for name in extra}
            converted = {name: _converted(name, state[name], value) for name, value in tensors.items()}
    for name, value in tensors.items():
        whole = converted[name] if all_ranks.me == root else zero_volume_tensor(dtype=value.dtype)
        if name not in layouts:
            value.copy_(operators.broadcast(all_ranks.line((root,)), all_ranks)(whole))
        elif layouts[name].grid.known:
            block = _scatter_from_root(layouts[name], whole, root)
            value.copy_(block.reshape(value.shape))  # also without elements: all ranks see a write
    if extra:
        pickled_states = gather_or_raise(
            "load_sequential", all_ranks, lambda: pickle.dumps(extra if all_ranks.me == root else {})
        )
        with agreed("load_sequential", all_ranks, lambda: ""):
            set_extra_states(model, pickle.loads(pickled_states[all_ranks.ranks.index(root)]))


def parameter_count(model: torch.nn.Module) -> int:
    """The number of elements of all parameters of the sequential twin of a model.

    A parameter that several layers share counts once. It takes no communication. A parameter that no layer declared
    (:meth:`distdl.nn.Module.declare_parameter`) counts as whole.
    """
    check_module("parameter_count", model)
    layouts = layouts_of(model)
    return sum(
        math.prod(layouts[name_in_state(name)].shape) if name_in_state(name) in layouts else parameter.numel()
        for name, parameter in model.named_parameters()
    )


def _check_state(shapes: Mapping[str, list[int]], extra: Iterable[str], state: Mapping[str, torch.Tensor]) -> None:
    """Raise RuntimeError for a state that does not fit. Additions of an overridden ``state_dict()`` are ignored."""
    problems = [f"missing {name}" for name in (*shapes, *extra) if name not in state]
    known = (name for name, value in state.items() if isinstance(value, torch.Tensor) or is_extra(name))
    problems += [f"unknown {name}" for name in known if name not in shapes and name not in extra]
    for name, shape in shapes.items():
        if name in state and not isinstance(state[name], torch.Tensor):
            problems.append(f"{name} is of type {type(state[name]).__name__}; it has to be a torch.Tensor")
        elif name in state and list(state[name].shape) != shape:
            problems.append(f"{name} has shape {list(state[name].shape)}; the model has {shape}")
    if problems:
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RuntimeError(f"load_sequential: {problems[0]}{others}")


def _problem_of(value: torch.Tensor) -> str:
    """Why a tensor cannot be sent or written; "" if it can."""
    if value.is_meta:
        return "is on the meta device, and has no values"
    if value.is_quantized or value.layout != torch.strided:
        kind = "quantized" if value.is_quantized else f"of layout {value.layout}"
        return f"is {kind}; it has to be dense (dequantize() or to_dense() make it so)"
    return ""


def _check_writable(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, value in tensors.items():
        problem = "" if value.is_meta else _problem_of(value)
        if value.is_inference() and not torch.is_inference_mode_enabled():
            problem = "was made in inference_mode and cannot be written outside of it"
        if problem:
            raise RuntimeError(f"load_sequential: the model's {name} {problem}")


def _converted(name: str, loaded: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Convert a value of the state to the model's dtype and device. On the root, before any rank writes."""
    problem = _problem_of(loaded)
    if problem:
        raise RuntimeError(f"load_sequential: {name} {problem}")
    try:
        return loaded.detach().to(device=None if value.is_meta else value.device, dtype=value.dtype)
    except Exception as error:
        raise RuntimeError(f"load_sequential: {name} does not become {value.dtype}: {error}") from error
