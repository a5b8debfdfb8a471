"""The functions of torch that a program's code names, and advice on their use with blocks."""

from __future__ import annotations

import builtins
import dis
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import CodeType, FunctionType

import torch
import torch.nn.functional as F
from torch.nn.utils import parametrizations

from distdl.torch_compat.layers import AnyLoss

_SKIPPED_PACKAGES = ("torch", "distdl")
_RESHAPING = ("flatten", "reshape", "view")
_LOSS_NAMES = ("_loss", "cross_entropy", "cross_entropy_with_logits")
_LOSS_FUNCTIONS = [F.kl_div, *(function for name, function in vars(F).items() if name.endswith(_LOSS_NAMES))]
_WHOLE_TENSOR = [F.batch_norm, F.instance_norm, F.group_norm, F.local_response_norm, F.dropout, F.alpha_dropout]
_INITIALIZERS = [item for name, item in vars(torch.nn.init).items() if name.endswith("_") and inspect.isfunction(item)]
_PARAMETRIZATIONS: list[Callable[..., object]] = [torch.nn.utils.spectral_norm, torch.nn.utils.weight_norm]
_PARAMETRIZATIONS += [parametrizations.spectral_norm, parametrizations.orthogonal, parametrizations.weight_norm]

Advice = tuple[str, str]  # a problem, and the replacement for the code


def names_in_code(model: object, depth: int) -> dict[str, tuple[object, ...]]:
    """Names in the code of a model's classes and of the calling module: objects, or names of methods.

    The code of torch and of this package is left out.

    Returns the names by function. ``depth`` is the number of calls between the module and this function.
    """
    frame = sys._getframe(depth)
    own = frame.f_globals.get("__name__")
    held = [value for value in list(frame.f_globals.values()) if getattr(value, "__module__", None) == own]
    classes = {base for module in _modules(model) for base in type(module).__mro__}
    for base in classes:
        if base.__module__.partition(".")[0] not in (*_SKIPPED_PACKAGES, "builtins"):
            held += vars(base).values()
    functions = [(frame.f_code.co_name, frame.f_code, frame.f_globals)]
    functions += [(f.__qualname__, f.__code__, f.__globals__) for f in held if isinstance(f, FunctionType)]
    for name, code, known in functions:  # which grows by the functions within
        functions += [(f"{name}.<locals>.{c.co_name}", c, known) for c in code.co_consts if isinstance(c, CodeType)]
    names: dict[str, tuple[object, ...]] = {}
    for name, code, known in sorted(functions, key=itemgetter(0)):  # lambdas of a function have the same name
        names[name] = names.get(name, ()) + tuple(_names_used(code, known))
    return names


def _modules(model: object) -> list[torch.nn.Module]:
    return list(model.modules()) if isinstance(model, torch.nn.Module) else []


def _names_used(code: CodeType, known: Mapping[str, object]) -> Iterator[object]:
    """The objects of names such as F.mse_loss; for methods the name, such as "view" for x.view; None for variables."""
    missing = object()
    at: object = missing
    for step in dis.get_instructions(code):
        if step.opname in ("PRECALL", "CACHE", "PUSH_NULL"):
            continue
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            at = known.get(str(step.argval), getattr(builtins, str(step.argval), missing))
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if at is missing:
                yield str(step.argval)
            at = missing if at is missing else getattr(at, str(step.argval), missing)
        else:
            at = missing
            if step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
                yield None
        if at is not missing and (callable(at) or isinstance(at, type)):
            yield at


def advice_on(
    function: object, names: tuple[object, ...], twins: Mapping[type[torch.nn.Module], type[torch.nn.Module]]
) -> Iterator[Advice]:
    """Errors that a function causes in code around a model of layers over partitions.

    Args:
        function: the function, or the name of a method.
        names: all names in the code.
        twins: the layers of the model, by the layers of torch.nn that they replace.
    """
    name = getattr(function, "__name__", "")
    if function is torch.nn.utils.clip_grad_norm_:
        yield "clip_grad_norm_ of torch clips by the norm of this rank's blocks", "use distdl.clip_grad_norm_"
    elif _is_in(function, _LOSS_FUNCTIONS):
        yield f"{name} of torch is the loss of this rank's block alone", "use a loss of distdl.nn"
    elif _is_in(function, _WHOLE_TENSOR):
        yield f"{name} of torch looks at this rank's block alone", "use the layer of distdl.nn"
    elif _is_in(function, _INITIALIZERS):
        yield f"torch.nn.init.{name} fills a block with copies and with its own fan", f"use distdl.nn.init.{name}"
    elif _is_in(function, _PARAMETRIZATIONS):
        yield f"{name} of torch looks at a block of a weight in place of the whole", "use it on layers of torch alone"
    elif function is torch.flatten or (isinstance(function, str) and function in _RESHAPING):
        shown = function if isinstance(function, str) else name
        problem = f"{shown} mixes up the elements where it joins or cuts a dimension that is split"
        yield problem, "use distdl.nn.DistributedFlatten or DistributedUnflatten there"
    elif isinstance(function, type) and function in twins and isinstance in names and twins[function] not in names:
        problem = f"isinstance(layer, {name}) does not hold for {twins[function].__name__}"
        yield problem, f"ask for ({name}, distdl.nn.{twins[function].__name__})"


def advice_on_loops(names: Sequence[object], distribute: object) -> Iterator[Advice]:
    """Errors in code that calls backward() and has blocks of a distributed model, whose own code is for whole tensors.

    Args:
        names: all names in the code.
        distribute: the function after which the names of distributed functions stand.
    """
    distributed = [name for before, name in itertools.pairwise(names) if before is distribute]
    others = dict.fromkeys(name for name in names if name not in distributed) if "backward" in names else {}
    for function in others:
        name = getattr(function, "__name__", "")
        is_layer = isinstance(function, type) and issubclass(function, AnyLoss) and names.count(distribute) < 2
        if is_layer or _is_in(function, _LOSS_FUNCTIONS):
            problem = f"{name} of torch is the loss of this rank's block alone"
            yield problem, f"use distdl.distribute({name}{'()' if is_layer else ''}, P_x) where it is given blocks"
        elif _is_in(function, [torch.nn.utils.clip_grad_norm_, *_WHOLE_TENSOR, *_INITIALIZERS]):
            yield from advice_on(function, (), {})


def _is_in(name: object, functions: Sequence[Callable[..., object]]) -> bool:
    return any(name is function for function in functions)
