"""Which layout parameters have that a user passes without the module that declared them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence

import torch

from distdl.collective.comparison import compare, raise_together
from distdl.nn.declared import layouts_of, ranks_of
from distdl.nn.module import Module, alive
from distdl.parameters.layout import Layout

_owner: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()  # by the tensor's id, as last found


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """The layout of a parameter or buffer in blocks; None for any other tensor, such as a parameter of torch's modules.

    A tensor that shows the memory of a parameter as it is, as ``layer.weight.data`` does, counts as this parameter.

    Raises:
        ValueError: if the tensor is a part or another view of a parameter in blocks.
    """
    known = _owner.get(id(tensor))
    for module in itertools.chain([] if known is None else [known], list(alive)):
        for name, declared in _declared(module):
            if declared is tensor or _shows_the_same(declared, tensor):
                _owner[id(tensor)] = module
                return module.layouts[name]
            if _shares_memory(declared, tensor):
                raise ValueError(
                    f"the tensor of shape {list(tensor.shape)} is a part or a view of {type(module).__name__}.{name}, "
                    "which is in blocks; pass the parameter itself"
                )
    return None


def layouts_of_parameters(parameters: Sequence[torch.Tensor]) -> list[Layout | None]:
    """The layout of each of these parameters, such as those of an optimizer; None for a parameter without one."""
    owners = _owners_of(parameters)
    return [None if owner is None else owner[0].layouts[owner[1]] for owner in owners]


def modules_of_parameters(parameters: Sequence[torch.Tensor]) -> list[Module | None]:
    """The module over partitions that declared each of these parameters; None for a parameter without one."""
    return [None if owner is None else owner[0] for owner in _owners_of(parameters)]


def _owners_of(parameters: Sequence[torch.Tensor]) -> list[tuple[Module, str] | None]:
    wanted = {id(parameter) for parameter in parameters}
    found = {
        id(tensor): (module, name)
        for module in list(alive)
        for name, tensor in _declared(module)
        if id(tensor) in wanted
    }
    return [found.get(id(parameter)) for parameter in parameters]


def layouts_behind(given: Iterable[object]) -> list[Layout]:
    """The layouts of the models, optimizers and parameters among some arguments."""
    layouts: list[Layout | None] = []
    for one in given:
        if isinstance(one, torch.nn.Module):
            layouts += layouts_of(one).values()
        elif isinstance(one, torch.optim.Optimizer):
            layouts += layouts_of_parameters([parameter for group in one.param_groups for parameter in group["params"]])
        elif isinstance(one, torch.Tensor | list | tuple):
            parameters = [one] if isinstance(one, torch.Tensor) else one
            layouts += layouts_of_parameters([two for two in parameters if isinstance(two, torch.Tensor)])
    return [layout for layout in layouts if layout is not None]


def _tell(what: str, error: Exception, given: Iterable[object]) -> None:
    compare(what, f"construction of {what}", ranks_of(layouts_behind(given)), error, {}, {})


model_call = raise_together(_tell)
"""A decorator for functions of a model that its ranks call together."""


def _declared(module: Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a module that are in blocks, by name, without parameters that a parametrization has replaced."""
    if not module.layouts:
        return iter(())
    everything = itertools.chain(module.named_parameters(remove_duplicate=False), module.named_buffers())
    return ((name, tensor) for name, tensor in everything if name in module.layouts)


def _shows_the_same(declared: torch.Tensor, tensor: torch.Tensor) -> bool:
    if declared.shape != tensor.shape or declared.device != tensor.device or declared.layout != tensor.layout:
        return False
    return not tensor.is_meta and declared.is_set_to(tensor)


def _shares_memory(declared: torch.Tensor, tensor: torch.Tensor) -> bool:
    if declared.layout != torch.strided or tensor.layout != torch.strided or not tensor.numel():
        return False
    memory = tensor.untyped_storage().data_ptr()
    return memory != 0 and declared.untyped_storage().data_ptr() == memory
