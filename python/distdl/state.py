"""Weights and gradients between a sequential model and a distributed one."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Mapping

import torch

from distdl import operators
from distdl.collective.comparison import agreed, gather_or_raise
from distdl.collective.construction import constructing
from distdl.collective.grid import Grid
from distdl.nn.declared import (
    check_module,
    check_undeclared,
    layouts_of,
    ranks_of,
    sources_of_gradients,
)
from distdl.nn.owners import model_call
from distdl.nn.states import extra_states, is_extra, name_in_state, set_extra_states, tensors_in_state
from distdl.parameters.layout import Layout
from distdl.structure import zero_volume_tensor


def _shapes(own: Mapping[str, torch.Tensor], layouts: Mapping[str, Layout]) -> dict[str, list[int]]:
    """The shapes in the sequential model's state."""
    return {name: list(layouts[name].shape if name in layouts else value.shape) for name, value in own.items()}


def _check_root(what: str, root: int, everyone: Grid, layouts: Mapping[str, Layout]) -> None:
    for known in (everyone.ranks, *(layout.grid.constructors for layout in layouts.values())):
        if known and root not in known:
            raise ValueError(f"{what}: root {root} is none of the ranks {list(known)} of the model's partitions")


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
@model_call
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
    check_module("sequential_state_dict", model)
    layouts = layouts_of(model)
    if not layouts:
        return {name: value.clone() for name, value in tensors_in_state(model).items()} | extra_states(model)
    everyone = ranks_of(layouts.values())
    if not everyone.known:
        return {}
    compared: dict[str, object] = {"root": root}
    with constructing("sequential_state_dict", {"ranks": everyone}, compared):
        own, extra = tensors_in_state(model), extra_states(model)
        compared["names"] = [*own, *extra]
        _check_root("sequential_state_dict", root, everyone, layouts)
    check_undeclared("sequential_state_dict", model, everyone, layouts)
    state = {}
    for name, value in own.items():
        if name not in layouts:
            state[name] = value.clone()
        elif layouts[name].grid.known:
            state[name] = _to_root(layouts[name], value, root)
    return state | extra if everyone.me == root else {}


@torch.no_grad()
@model_call
def sequential_gradients(model: torch.nn.Module, root: int = 0) -> dict[str, torch.Tensor]:
    """The gradients of the sequential twin of a model: those of whole parameters, under the same names.

    Args:
        model: a distributed layer, or a model with distributed and other layers.
        root: the rank that receives the gradients, counted in the communicator that the partitions come from.

    Returns:
        On rank ``root`` the gradient of each parameter that has one, by the names of ``named_parameters()``; an empty
        dict on all other ranks.

    Raises:
        ValueError: on all ranks, as :func:`sequential_state_dict`; or if the gradients of a parameter that no layer
            declared differ among the ranks.

    Collective over the communicator that the partitions come from. If no parameter of the model is distributed, there
    is no such communicator: each calling rank receives the model's gradients.
    """
    check_module("sequential_gradients", model)
    layouts, parameters = layouts_of(model), dict(model.named_parameters())
    given = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    if not layouts:
        return {name: gradient.to_dense().clone() for name, gradient in given.items()}
    everyone = ranks_of(layouts.values())
    if not everyone.known:
        return {}
    with constructing("sequential_gradients", {"ranks": everyone}, {"root": root, "names": list(parameters)}):
        own = {name: gradient.to_dense() for name, gradient in given.items()}
        _check_root("sequential_gradients", root, everyone, layouts)
    check_undeclared("sequential_gradients", model, everyone, layouts)
    undeclared = [name for name in parameters if name_in_state(name) not in layouts]
    sources = sources_of_gradients(own, undeclared, everyone)
    gradients = {}
    for name, parameter in parameters.items():
        if name not in sources:
            continue
        block = own.get(name, torch.zeros_like(parameter))
        layout = layouts.get(name_in_state(name)) or Layout(
            everyone.line((sources[name],)), tuple(block.shape), (None,) * block.dim()
        )
        if layout.grid.known:
            gradients[name] = _to_root(layout, block, root)
    return gradients if everyone.me == root else {}


@torch.no_grad()
@model_call
def load_sequential(
    model: torch.nn.Module, state_dict: Mapping[str, torch.Tensor] | None = None, root: int = 0
) -> None:
    """Load the state of the sequential twin of a model into it: each rank receives its blocks.

    Args:
        model: a distributed layer, or a model with distributed and other layers.
        state_dict: the sequential model's state; needed on rank ``root`` only.
        root: the rank that has the state, counted in the communicator that the partitions come from.

    Raises:
        RuntimeError: on all ranks, if names are missing or unknown, if shapes differ, or if a value is no dense tensor
            that the model's dtype can be made of. Everything is checked before anything is written.
        ValueError: on all ranks, if ``root`` is not a rank of the partitions, if the ranks pass different roots or
            models, or if the model has a tensor in blocks that is not declared.

    Collective over the communicator that the partitions come from. If no parameter of the model is distributed, there
    is no such communicator: each rank has to call it with the state.
    """
    check_module("load_sequential", model)
    layouts = layouts_of(model)
    if not layouts:
        _check(_shapes(tensors_in_state(model), layouts), extra_states(model), state_dict or {})
        model.load_state_dict(dict(state_dict or {}))
        return
    everyone = ranks_of(layouts.values())
    if not everyone.known:
        return
    given: dict[str, torch.Tensor] = {}
    compared: dict[str, object] = {"root": root}
    with constructing("load_sequential", {"ranks": everyone}, compared):
        own, extra = tensors_in_state(model), extra_states(model)
        compared["names"] = [*own, *extra]
        _check_root("load_sequential", root, everyone, layouts)
    check_undeclared("load_sequential", model, everyone, layouts)
    shapes = _shapes(own, layouts)
    with constructing("load_sequential", {"ranks": everyone}, {"shapes": shapes}):
        _check_writable(own)
        if everyone.me == root:
            state = dict(state_dict or {})
            _check(shapes, extra, state)
            extra = {name: state[name] for name in extra}
            given = {name: _converted(name, state[name], value) for name, value in own.items()}
    for name, value in own.items():
        whole = given[name] if everyone.me == root else zero_volume_tensor(dtype=value.dtype)
        if name not in layouts:
            value.copy_(operators.broadcast(everyone.line((root,)), everyone)(whole))
        elif layouts[name].grid.known:
            block = _from_root(layouts[name], whole, root)
            if block.numel():
                value.copy_(block)
    if extra:
        states = gather_or_raise(
            "load_sequential", everyone, lambda: pickle.dumps(extra if everyone.me == root else {})
        )
        with agreed("load_sequential", everyone, lambda: ""):
            set_extra_states(model, pickle.loads(states[everyone.ranks.index(root)]))


def parameter_count(model: torch.nn.Module) -> int:
    """The number of elements of all parameters of the sequential twin of a model, on every rank.

    Each parameter counts once, also where several layers use it. It takes no communication. A parameter that no layer
    declared (:meth:`distdl.nn.Module.declare_parameter`) counts as whole.
    """
    check_module("parameter_count", model)
    layouts = layouts_of(model)
    return sum(
        math.prod(layouts[name_in_state(name)].shape) if name_in_state(name) in layouts else parameter.numel()
        for name, parameter in model.named_parameters()
    )


def _check(shapes: Mapping[str, list[int]], extra: Iterable[str], given: Mapping[str, torch.Tensor]) -> None:
    """Raise RuntimeError for a state that does not fit. What an override of ``state_dict()`` adds is passed over."""
    problems = [f"missing {name}" for name in (*shapes, *extra) if name not in given]
    known = (name for name, one in given.items() if isinstance(one, torch.Tensor) or is_extra(name))
    problems += [f"unknown {name}" for name in known if name not in shapes and name not in extra]
    for name, shape in shapes.items():
        if name in given and not isinstance(given[name], torch.Tensor):
            problems.append(f"{name} is of type {type(given[name]).__name__}; it has to be a torch.Tensor")
        elif name in given and list(given[name].shape) != shape:
            problems.append(f"{name} has shape {list(given[name].shape)}; the model has {shape}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RuntimeError(f"load_sequential: {problems[0]}{more}")


def _unfit(value: torch.Tensor) -> str:
    """Why a tensor cannot be sent or written; "" if it can."""
    if value.is_meta:
        return "is on the meta device, and has no values"
    if value.is_quantized or value.layout != torch.strided:
        kind = "quantized" if value.is_quantized else f"of layout {value.layout}"
        return f"is {kind}; it has to be dense (dequantize() or to_dense() make it so)"
    return ""


def _check_writable(own: Mapping[str, torch.Tensor]) -> None:
    for name, value in own.items():
        problem = "" if value.is_meta else _unfit(value)
        if value.is_inference() and not torch.is_inference_mode_enabled():
            problem = "was made in inference_mode and cannot be written outside of it"
        if problem:
            raise RuntimeError(f"load_sequential: the model's {name} {problem}")


def _converted(name: str, given: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A value of the state as the model takes it. On the root, before any rank writes."""
    problem = _unfit(given)
    if problem:
        raise RuntimeError(f"load_sequential: {name} {problem}")
    try:
        return given.detach().to(device=None if value.is_meta else value.device, dtype=value.dtype)
    except Exception as error:
        raise RuntimeError(f"load_sequential: {name} does not become {value.dtype}: {error}") from error
