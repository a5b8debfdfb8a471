"""Which functions of torch a program calls, as far as its code names them."""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType

import torch
import torch.nn.functional as F
from torch.nn.utils import parametrizations

_LIBRARIES = ("torch", "distdl")
_RESHAPING = ("flatten", "reshape", "view")
_LOSS_NAMES = ("_loss", "cross_entropy", "cross_entropy_with_logits")
_LOSSES = [one for name, one in vars(F).items() if name.endswith(_LOSS_NAMES)]
_LOSSES += [F.kl_div]
_ACROSS = [F.batch_norm, F.instance_norm, F.group_norm, F.local_response_norm, F.dropout, F.alpha_dropout]
_INITIALIZERS = [one for name, one in vars(torch.nn.init).items() if name.endswith("_") and inspect.isfunction(one)]
_PARAMETRIZATIONS: list[Callable[..., object]] = [torch.nn.utils.spectral_norm, torch.nn.utils.weight_norm]
_PARAMETRIZATIONS += [parametrizations.spectral_norm, parametrizations.orthogonal, parametrizations.weight_norm]

Text = tuple[str, str]  # what goes wrong, and what to use instead


def code_behind(model: object, depth: int) -> dict[str, tuple[object, ...]]:
    """Names used in the code of a model's classes and of the calling module: objects, or names of methods.

    Args:
        model: the model.
        depth: how many calls this function is away from the module.

    Returns:
        By the name of the function. The code of torch and of this package is left out.
    """
    frame = sys._getframe(depth)
    found = {frame.f_code.co_name: (frame.f_code, frame.f_globals)}
    for value in list(frame.f_globals.values()):
        if isinstance(value, FunctionType) and value.__module__ == frame.f_globals.get("__name__"):
            found[value.__qualname__] = (value.__code__, value.__globals__)
    classes = {kind for one in _modules(model) for kind in type(one).__mro__}
    for kind in classes:
        if kind.__module__.partition(".")[0] not in (*_LIBRARIES, "builtins"):
            for value in vars(kind).values():
                if isinstance(value, FunctionType):
                    found[value.__qualname__] = (value.__code__, value.__globals__)
    return {name: tuple(_named(*found[name])) for name in sorted(found)}


def _modules(model: object) -> list[torch.nn.Module]:
    return list(model.modules()) if isinstance(model, torch.nn.Module) else []


def _named(code: CodeType, known: Mapping[str, object]) -> Iterator[object]:
    """The objects behind names such as F.mse_loss; of anything else the name, as "view" for x.view."""
    missing = object()
    at: object = missing
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            at = known.get(str(step.argval), getattr(builtins, str(step.argval), missing))
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if at is missing:
                yield str(step.argval)
            at = missing if at is missing else getattr(at, str(step.argval), missing)
        elif step.opname not in ("PRECALL", "CACHE", "PUSH_NULL"):
            at = missing
        if at is not missing and (callable(at) or isinstance(at, type)):
            yield at
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, known)


def calls_of(
    one: object, together: tuple[object, ...], twins: Mapping[type[torch.nn.Module], type[torch.nn.Module]]
) -> Iterator[Text]:
    """Errors that a function causes in code around a model of layers over partitions.

    Args:
        one: the function, or the name of a method.
        together: everything that this code names.
        twins: the layers of the model, by the layers of torch.nn that they take the place of.
    """
    name = getattr(one, "__name__", "")
    if one is torch.nn.utils.clip_grad_norm_:
        yield "clip_grad_norm_ of torch clips by the norm of this rank's blocks", "use distdl.clip_grad_norm_"
    elif _is_in(one, _LOSSES):
        yield f"{name} of torch is the loss of this rank's block alone", "use a loss of distdl.nn"
    elif _is_in(one, _ACROSS):
        yield f"{name} of torch looks at this rank's block alone", "use the layer of distdl.nn"
    elif _is_in(one, _INITIALIZERS):
        yield f"torch.nn.init.{name} fills a block with copies and with its own fan", f"use distdl.nn.init.{name}"
    elif _is_in(one, _PARAMETRIZATIONS):
        yield f"{name} of torch looks at a block of a weight in place of the whole", "use it on layers of torch alone"
    elif one is torch.flatten or (isinstance(one, str) and one in _RESHAPING):
        shown = one if isinstance(one, str) else name
        what = f"{shown} mixes up the elements where it joins or cuts a dimension that is split"
        yield what, "use distdl.nn.DistributedFlatten or DistributedUnflatten there"
    elif isinstance(one, type) and one in twins and isinstance in together and twins[one] not in together:
        what = f"isinstance(layer, {name}) does not hold for {twins[one].__name__}"
        yield what, f"ask for ({name}, distdl.nn.{twins[one].__name__})"


def _is_in(one: object, functions: Sequence[Callable[..., object]]) -> bool:
    return any(one is function for function in functions)
