"""Look up the layout of a parameter that is passed without its module."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence

import torch

from distdl.modules.layouts import layouts_of, ranks_of
from distdl.modules.module import Module, alive
from distdl.parameters.layout import Layout
from distdl.partitions.comparison import compare
from distdl.partitions.signatures import raise_together

_owner: weakref.WeakValueDictionary[int, Module] = (
    weakref.WeakValueDictionary()
)  # by the tensor's id, from the last lookup


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """The layout of a parameter or buffer in blocks; None for any other tensor, e.g. a parameter of torch's modules.

    A tensor that views a whole parameter, such as ``layer.weight.data``, counts as this parameter.

    Raises:
        ValueError: if the tensor is a part or another view of a parameter in blocks.
    """
    known = _owner.get(id(tensor))
    for module in itertools.chain([] if known is None else [known], list(alive)):
        for name, declared in _declared(module):
            if declared is tensor or _views_same_tensor(declared, tensor):
                _owner[id(tensor)] = module
                return module.layouts[name]
            if _shares_memory(declared, tensor):
                raise ValueError(
                    f"the tensor of shape {list(tensor.shape)} is a part or a view of {type(module).__name__}.{name}, "
                    "which is in blocks; pass the parameter itself"
                )
    return None


def layouts_of_parameters(parameters: Sequence[torch.Tensor]) -> list[Layout | None]:
    """The layout of each parameter; None for a parameter without a layout."""
    owners = _owners_of(parameters)
    return [None if owner is None else owner[0].layouts[owner[1]] for owner in owners]


def modules_of_parameters(parameters: Sequence[torch.Tensor]) -> list[Module | None]:
    """The module over partitions that declared each parameter; None for other parameters."""
    return [None if owner is None else owner[0] for owner in _owners_of(parameters)]


def _owners_of(parameters: Sequence[torch.Tensor]) -> list[tuple[Module, str] | None]:
    ids = {id(parameter) for parameter in parameters}
    owners = {
        id(tensor): (module, name) for module in list(alive) for name, tensor in _declared(module) if id(tensor) in ids
    }
    return [owners.get(id(parameter)) for parameter in parameters]


def layouts_behind(arguments: Iterable[object]) -> list[Layout]:
    """The layouts of the models, optimizers and parameters among some arguments."""
    layouts: list[Layout | None] = []
    for argument in arguments:
        if isinstance(argument, torch.nn.Module):
            layouts += layouts_of(argument).values()
        elif isinstance(argument, torch.optim.Optimizer):
            layouts += layouts_of_parameters(
                [parameter for group in argument.param_groups for parameter in group["params"]]
            )
        elif isinstance(argument, torch.Tensor | list | tuple):
            parameters = [argument] if isinstance(argument, torch.Tensor) else argument
            layouts += layouts_of_parameters([tensor for tensor in parameters if isinstance(tensor, torch.Tensor)])
    return [layout for layout in layouts if layout is not None]


def _raise_on_all_ranks(what: str, error: Exception, arguments: Iterable[object]) -> None:
    compare(what, f"construction of {what}", ranks_of(layouts_behind(arguments)), error, {}, {})


model_call = raise_together(_raise_on_all_ranks)
"""A decorator for functions of a model that its ranks call together."""


def _declared(module: Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a module in blocks, by name, without parameters that a parametrization has replaced."""
    if not module.layouts:
        return iter(())
    tensors = itertools.chain(module.named_parameters(remove_duplicate=False), module.named_buffers())
    return ((name, tensor) for name, tensor in tensors if name in module.layouts)


def _views_same_tensor(declared: torch.Tensor, tensor: torch.Tensor) -> bool:
    if declared.shape != tensor.shape or declared.device != tensor.device or declared.layout != tensor.layout:
        return False
    return not tensor.is_meta and declared.is_set_to(tensor)


def _shares_memory(declared: torch.Tensor, tensor: torch.Tensor) -> bool:
    if declared.layout != torch.strided or tensor.layout != torch.strided or not tensor.numel():
        return False
    memory = tensor.untyped_storage().data_ptr()
    return memory != 0 and declared.untyped_storage().data_ptr() == memory
