"""Calls of a function of torch that give each of its arguments a value that is not its default."""

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from distdl.models.capture.functions import key_of
from support.arguments.signatures import REQUIRED, Signature, signatures
from support.arguments.values import LEFT_OUT, ROWS, Together, entry, value_of


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Attributes:
        argument: has another value than its default; "" for none.
        how: says how the arguments are passed.
        may_be_refused: whether the function itself may refuse the call.
    """

    function: Callable[..., Any]
    key: str
    argument: str
    how: str
    shape: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    may_be_refused: bool = False

    def __call__(self, x: torch.Tensor) -> Any:
        """The result for a tensor of this shape."""
        args = [_made(value, x) for value in self.args]
        return self.function(*args, **{name: _made(value, x) for name, value in self.kwargs.items()})

    def __str__(self) -> str:
        return f"{self.key} with {self.argument or 'what it needs'} {self.how}".strip()


def _made(value: Any, x: torch.Tensor) -> Any:
    return value(x) if isinstance(value, types.FunctionType) else value


def calls_of(function: Callable[..., Any]) -> list[Call]:
    """A call with required arguments alone, and for each other argument calls by its name and by its position."""
    overloads = [overload for overload in signatures(function) if not _needs_what_is_left_out(overload)]
    return [call for signature in overloads for call in _calls(signature)]


def _needs_what_is_left_out(signature: Signature) -> bool:
    return any(argument.default is REQUIRED and argument.name in LEFT_OUT for argument in signature.arguments)


_OF_NUMPY = {"dim": "axis", "keepdim": "keepdims"}


def _calls(signature: Signature) -> Iterator[Call]:
    table, taken = entry(signature), [p for p in signature.arguments if p.name not in LEFT_OUT]
    base = {p.name: value_of(signature, p) for p in taken if p.default is REQUIRED} | table.get("BASE", {})
    base = {name: v.value if isinstance(v, Together) else v for name, v in base.items()}
    first = next((p.name for p in taken if p.is_tensor), "")
    shape = table.get("SHAPE", (2, 4, 6, 5) if any(p.name == "memory_format" for p in taken) else ROWS)
    others = [p for p in taken if p.default is not REQUIRED]

    def call(argument: str, how: str, values: dict[str, Any], place: int, may_be_refused: bool = False) -> Call:
        values = _with_first(values, first, table)
        positional = [p for p in signature.arguments[:place] if not p.by_name]
        args = tuple(values.pop(p.name, p.default) for p in positional)
        return Call(signature.function, key_of(signature.function), argument, how, shape, args, values, may_be_refused)

    place = len([p for p in signature.arguments if p.default is REQUIRED and not p.by_name])
    yield call("", "", base, place, bool(others))
    yield call("", "in another order", dict(reversed(base.items())), _first_of(signature), may_be_refused=True)
    for p in taken:
        if p.name in _OF_NUMPY and not isinstance(value := value_of(signature, p), Together):
            values = {name: x for name, x in base.items() if name != p.name} | {_OF_NUMPY[p.name]: value}
            yield call(p.name, "by NumPy's name", values, signature.arguments.index(p), True)
    for p in others:
        value = value_of(signature, p)
        if value is None:
            continue
        further = value.others if isinstance(value, Together) else {}
        values = base | further | {p.name: value.value if isinstance(value, Together) else value}
        yield call(p.name, "by its name", values, place)
        if not p.by_name and not (further.keys() - {"FIRST"} - base.keys()):
            yield call(p.name, "by its position", values, signature.arguments.index(p) + 1, True)


def _first_of(signature: Signature) -> int:
    """The number of arguments that cannot be passed by name: the tensor of a method."""
    return int(not isinstance(signature.function, types.FunctionType | types.BuiltinFunctionType))


def _with_first(values: dict[str, Any], first: str, table: dict[str, Any]) -> dict[str, Any]:
    """The same with the split tensor in place of the first."""
    values = dict(values)
    make = values.pop("FIRST", table.get("FIRST"))
    if first and not (isinstance(values.get(first), list) or first == "tensors"):
        values[first] = _times_one if make is None else lambda x: make(x)
    return values


def _times_one(x: torch.Tensor) -> torch.Tensor:
    return x * 1.0
