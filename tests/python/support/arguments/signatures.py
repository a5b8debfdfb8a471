"""The arguments that functions of torch take, of all overloads."""

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import get_overridable_functions, get_testing_overrides, resolve_name

from distdl.models.capture.decompositions import DECOMPOSITIONS, SPLITTING
from distdl.models.capture.functions import SHAPED_AS, key_of
from distdl.models.rules import RULES

REQUIRED = inspect.Parameter.empty
UNDEFINED = ("as_tensor", "new_tensor", "tensor", "empty", "empty_like", "new_empty", "range")
"""Functions that take any lists, make tensors of any values, or are deprecated."""


@dataclass(frozen=True)
class Argument:
    """An argument of a function.

    Attributes:
        kind: its type, as schemas of torch name it; "" where only a signature in Python is known.
        default: REQUIRED if there is none.
        by_name: whether it can be passed by name alone.
    """

    name: str
    kind: str
    default: Any
    by_name: bool

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor is required, or several."""
        return self.kind in ("Tensor", "List[Tensor]") and self.default is REQUIRED


@dataclass(frozen=True)
class Signature:
    """An overload of a function.

    Attributes:
        name: of the function, and behind a dot of the overload.
    """

    function: Callable[..., Any]
    name: str
    arguments: tuple[Argument, ...]


def functions() -> dict[str, Callable[..., Any]]:
    """The functions of torch that have a rule, by name: each signature once."""
    known = RULES.keys() | SPLITTING | SHAPED_AS.keys() | DECOMPOSITIONS.keys()
    by_name: dict[str, Callable[..., Any]] = {}
    seen: set[str] = set()
    modules = [torch.nn.functional, torch, torch.functional, torch.fft, torch.linalg, torch.special, torch.Tensor]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        overridable = get_overridable_functions()
    made = [getattr(torch, key) for key in RULES if hasattr(torch, key)]  # from nothing, or not overridable
    made += [getattr(torch.Tensor, key) for key in RULES if key.startswith("new_")]
    made = [f for f in made if getattr(f, "__name__", "") not in UNDEFINED]
    for function in [*(f for module in modules for f in overridable.get(module, [])), *made]:
        name = getattr(function, "__name__", "")
        if not name or name in UNDEFINED or name.startswith("__") or (plain := key_of(function)) not in known:
            continue
        where = "F." if getattr(function, "__module__", None) == F.__name__ else ""
        if f"{where}{plain}" not in seen:
            seen.add(f"{where}{plain}")
            by_name[resolve_name(function) or f"torch.{name}"] = function
    return by_name


def signatures(function: Callable[..., Any]) -> list[Signature]:
    """The overloads of a function that have tensors as results, without those with ``out``."""
    name = function.__name__
    parameters = _of_python(function)
    if parameters is not None:
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return []  # tensors alone
        parameters = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        kinds = ["Tensor", *[""] * len(parameters)]
        arguments = [
            Argument(p.name, kind, p.default, p.kind is p.KEYWORD_ONLY)
            for kind, p in zip(kinds, parameters, strict=False)
        ]
        return [Signature(function, name, tuple(arguments))]
    return [
        Signature(function, f"{name}.{schema.overload_name}".removesuffix("."), tuple(_of_schema(schema)))
        for schema in _schemas(name)
        if _makes_tensors(schema)
    ]


def _of_python(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function that is written in Python; None for others."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
        if [p.kind for p in parameters] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
            other = getattr(F, f"{function.__name__}_with_indices", None) or get_testing_overrides()[function]
            parameters = [*inspect.signature(other).parameters.values()]
    except ValueError:
        if _schemas(function.__name__):
            return None
        parameters = [*inspect.signature(get_testing_overrides()[function]).parameters.values()]
    return parameters


def _schemas(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name, None)
    return [getattr(packet, key)._schema for key in packet.overloads()] if hasattr(packet, "overloads") else []


def _makes_tensors(schema: Any) -> bool:
    """Whether it has tensors as results, and writes into none but the first argument."""
    is_internal = re.search(r"Dimname|\bt\[|AnyEnum|prim_|Storage", str(schema))
    kinds = [str(result.real_type) for result in schema.returns]
    return any("Tensor" in kind for kind in kinds) and not is_internal and not any(a.is_out for a in schema.arguments)


def _of_schema(schema: Any) -> Iterator[Argument]:
    for argument in schema.arguments:
        default = argument.default_value if argument.has_default_value() else REQUIRED
        yield Argument(argument.name, str(argument.real_type), default, argument.kwarg_only)
