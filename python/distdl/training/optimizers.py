"""Check that an optimizer of torch.optim takes the same steps on blocks as on whole parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from distdl.modules.layout_lookup import layouts_of_parameters, modules_of_parameters
from distdl.modules.module import Module
from distdl.parameters.layout import Layout


def misfit_of(optimizer: torch.optim.Optimizer) -> str | None:
    """Why an optimizer would take wrong steps with its parameters; None if it takes the steps of the sequential run.

    All other optimizers of torch.optim compute element by element. All ranks get the same answer, without
    communication.
    """
    for kind, (fits, rule) in _LAYOUT_RULES.items():
        if isinstance(optimizer, kind):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            layouts = [layout for layout in layouts_of_parameters(parameters) if layout is not None]
            unfit = next((layout for layout in layouts if not fits(layout)), None)
            if unfit is not None:
                return (
                    f"torch.optim.{kind.__name__} {rule}; a parameter of shape {list(unfit.whole_shape)} lives in the "
                    f"layout {unfit.kind!r} on ranks {list(unfit.grid.ranks)}. Use an optimizer that computes element "
                    "by element, such as torch.optim.AdamW"
                )
    return None


def _is_whole(layout: Layout) -> bool:
    """Whether each rank that has a block of the parameter has all of it."""
    return all(layout.parts_along(d) == 1 for d in range(len(layout.shape))) and layout.shard_dim is None


def _is_whole_everywhere(layout: Layout) -> bool:
    everywhere = layout.grid.known and len(layout.grid.constructors) == layout.grid.size
    return _is_whole(layout) and everywhere and (layout.kind == "replicated" or layout.grid.size == 1)


_LAYOUT_RULES: dict[type[torch.optim.Optimizer], tuple[Callable[[Layout], bool], str]] = {
    torch.optim.Adafactor: (_is_whole, "takes means over rows and columns of whole parameters"),
    torch.optim.LBFGS: (_is_whole_everywhere, "takes inner products of all parameters on each rank"),
    torch.optim.Muon: (_is_whole, "makes whole matrices orthogonal"),
}


StepArguments: TypeAlias = tuple[tuple[object, ...], dict[str, object]]


def _before_step(
    optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
) -> StepArguments | None:
    if not isinstance(optimizer, (torch.optim.SparseAdam, *_LAYOUT_RULES)):
        return None
    problem = misfit_of(optimizer)
    if problem is not None:
        raise ValueError(f"{problem}. See the page on optimizers of distdl's documentation")
    _drop_empty_gradients(optimizer)
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure) or isinstance(optimizer, torch.optim.LBFGS):
        return None
    return args[:1], {"closure": _dropping_empty_gradients(closure, optimizer)}


def _dropping_empty_gradients(closure: Callable[[], object], optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """The closure, followed by removing the gradients of empty blocks that it made."""

    @functools.wraps(closure)
    def closure_without_empty() -> object:
        loss = closure()
        _drop_empty_gradients(optimizer)
        return loss

    return closure_without_empty


def _drop_empty_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Remove gradients of empty blocks, which are dense and have no mean, so that these optimizers raise.

    SparseAdam keeps them where the layer's gradients are dense on other ranks too, because it raises there.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    empty = [parameter for parameter in parameters if parameter.numel() == 0]
    for parameter, module in zip(empty, modules_of_parameters(empty), strict=True):
        if not isinstance(optimizer, torch.optim.SparseAdam) or module is None or _has_sparse_gradients(module):
            parameter.grad = None


def _has_sparse_gradients(module: Module) -> bool:
    whole: Any = getattr(module, "module", module)  # of Local
    return any(getattr(layer, "sparse", False) for layer in whole.modules())


def install_checks() -> None:
    """Have steps of unfit optimizers raise on all ranks."""
    register_optimizer_step_pre_hook(_before_step)
