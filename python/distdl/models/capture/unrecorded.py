"""Refuse computations that a recording would not show, and inspect the memory of tensors."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from distdl.models.capture.refused_looks import UnknownValuesError
from distdl.models.capture.source_line import source_line
from distdl.torch_compat.autograd import saved_tensors_hooks
from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.memory import address_of_storage
from distdl.torch_compat.operators import writes_into_arguments
from distdl.torch_compat.parametrizations import computed_weights
from distdl.torch_compat.trees import tree_leaves

_OF_TORCH = frozenset(vars(torch.nn.Module()))  # the attributes of every module
_HOOKS = {"register_hook", "register_post_accumulate_grad_hook"}
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_ASSIGNED = {"data", "grad"}
_LOOKS = {"numpy", "tolist", "__array__", "array"}


def refuse_call(key: str, target: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call with effects that a program would not repeat.

    Args:
        key: the name of the function.
        target: the function.

    Raises:
        NotImplementedError: that says what to write instead.
    """
    name = getattr(target, "__name__", "")
    attribute = getattr(getattr(target, "__self__", None), "__name__", "") if name in ("__get__", "__set__") else ""
    reason, assigned = "", attribute if name == "__set__" else None
    if torch.is_inference_mode_enabled():
        reason = f"{key} is called in torch.inference_mode(); use torch.no_grad()"
    elif key in _HOOKS:
        reason = f"{key} gives a tensor a hook, which would see blocks; use a torch.autograd.Function"
    elif assigned in _ASSIGNED:
        reason = f"the {attribute} of a tensor is replaced; use copy_()"
    elif (name == "requires_grad_" or assigned == "requires_grad") and _changes_asking(args, kwargs):
        reason = "the model changes whether a parameter asks for gradients; use its detach(), or change it before"
    elif name == "__get__" and attribute == "grad_fn" and args[0].grad_fn is not None:
        reason = "the model looks at the grad_fn of a tensor"
    elif key in _LOOKS and isinstance(args[0], FakeTensor) and args[0].constant is None:
        raise UnknownValuesError(key, source_line())
    elif key == "backward" or (key == "grad" and attribute != "grad"):
        reason = f"{key} computes derivatives within the model"
    elif writes_into_arguments(target):
        reason = f"{key} writes into tensors; use an operator that returns others"
    elif name.startswith("_foreach_") and name.endswith("_"):
        reason = f"{name} writes into tensors; use _foreach functions that return others"
    elif isinstance(into := _written(key, name, args, kwargs), torch.Tensor) and not isinstance(into, FakeTensor):
        reason = f"{key} writes into a tensor of the model that is neither parameter nor buffer; use register_buffer()"
    if reason:
        raise NotImplementedError(f"{reason}, at {source_line()}")


def _changes_asking(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a call changes if a parameter asks for gradients."""
    asks = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    return isinstance(args[0], torch.nn.Parameter) and bool(asks) != args[0].requires_grad


def refuse_model(model: torch.nn.Module) -> None:
    """Refuse a model that can never be copied or recorded.

    Raises:
        NotImplementedError: that names the module or the attribute.
    """
    for path, module in model.named_modules():
        refuse_scripted(module, path)
        refuse_backward_hooks(module, path)
    for name, parameter in model.named_parameters():
        if any(getattr(parameter, kind, None) for kind in _PARAMETER_HOOKS):
            raise NotImplementedError(
                f"distribute: the parameter {name} has a hook on its gradient; give it to the parameter of this name "
                "of the distributed model, of which each rank has its part"
            )
    computed = computed_weights(model)
    for (path, name), value in attributes_of(model):
        if isinstance(value, torch.Tensor) and value.grad_fn is not None and id(value) not in computed:
            raise NotImplementedError(
                f"distribute: {name} of {path or 'the model'} is computed from what requires gradients, and is not "
                "computed again in a call; compute it in forward(), keep what detach() gives, or empty it, as train() "
                "and eval() of some models do"
            )


def refuse_backward_hooks(module: torch.nn.Module, path: str) -> None:
    """Refuse the hooks of a module that see the gradients of a call."""
    if vars(module)["_backward_hooks"] or vars(module)["_backward_pre_hooks"]:
        raise NotImplementedError(
            f"distribute: {path or 'the model'} has a hook on its backward pass, which would see the gradients of "
            "blocks; use a torch.autograd.Function, or a hook on the distributed model itself"
        )


def refuse_scripted(module: torch.nn.Module, path: str) -> None:
    """Refuse a module that torch has compiled to a program of its own."""
    if isinstance(module, torch.jit.ScriptModule):
        raise NotImplementedError(
            f"distribute: {path or 'the model'} is a module that torch.jit has scripted or traced, which does not show "
            "what it computes; distribute the model with the module from which it was made"
        )


def attributes_of(model: torch.nn.Module) -> Iterator[tuple[tuple[str, str], object]]:
    """Attributes of modules other than parameters, buffers and modules, with module paths and attribute names."""
    for path, module in model.named_modules():
        for name, value in own_attributes(module):
            for i, leaf in enumerate(tree_leaves(value)):
                yield (path, f"{name}[{i}]" if isinstance(value, list | tuple | dict) else name), leaf


def own_attributes(module: torch.nn.Module) -> Iterator[tuple[str, object]]:
    """The attributes of a module, without the attributes of every module of torch."""
    return ((name, value) for name, value in vars(module).items() if name not in _OF_TORCH)


def _written(key: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """The tensor into which a function of such a name writes; None for others."""
    if kwargs.get("out") is not None:
        return kwargs["out"]
    in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    augmented = name.startswith("__i") and name == f"__i{key}__"
    return args[0] if args and (in_place or augmented or name == "__setitem__") else None


def storage_of(tensor: torch.Tensor) -> int:
    """A number that is equal for tensors that share memory."""
    try:
        return address_of_storage(tensor)
    except (NotImplementedError, RuntimeError):  # of a layout without
        return id(tensor)


def is_same_view(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors that share memory have the same elements in the same shape."""

    def place(x: torch.Tensor) -> tuple[object, ...]:
        return x.storage_offset(), x.shape, x.stride(), x.dtype

    return place(tensor) == place(other)


def saved_tensors_hook() -> Callable[..., object] | None:
    """The user's hook that packs tensors saved for backward passes; None without one."""
    hooks = saved_tensors_hooks()
    return None if hooks is None else hooks[0]


Autocast = dict[str, torch.dtype | None]
"""The dtype of autocast by the kind of device; None where it is off."""


def autocast() -> Autocast:
    """The current autocast dtype of each kind of device; None where autocast is off."""
    kinds, accelerator = {"cpu", "cuda"}, torch.accelerator.current_accelerator()
    if accelerator is not None:
        kinds.add(accelerator.type)
    return {kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds}


def drawn_outside_of_torch() -> bytes:
    """The states of Python's and NumPy's generators, which change when random numbers are drawn."""
    return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002  (models that draw so)
