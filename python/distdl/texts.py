"""Texts of a program's values, for messages."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType

import torch

_WORDS = (bool, int, float, complex, str, bytes, NoneType)
_WITHOUT_OWN = (torch.Tensor, torch.nn.Module, type, FunctionType, MethodType, ModuleType, Enum)


def has_own_attributes(value: object) -> bool:
    """Whether attributes say all of a value, as of an object of a class in Python: no module, class or function."""
    return hasattr(value, "__dict__") and not isinstance(value, _WITHOUT_OWN)


def text_of(value: object) -> str:
    """The text of a value; of objects with the attributes.

    The text of an object may be its address, which differs by rank, or hide numbers and words on which a model depends.
    Of an object with a text of its own only these attributes are added.
    """
    return _text(value, {})


def _text(value: object, seen: dict[int, int]) -> str:
    if isinstance(value, list | tuple | dict) and type(value) in (list, tuple, dict):
        parts = value if isinstance(value, list | tuple) else [part for item in value.items() for part in item]
        return f"{type(value).__name__}({', '.join(_text(part, seen) for part in parts)})"
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType | type | NoneType):
        return value.__qualname__  # without its address
    if not has_own_attributes(value):
        return repr(value)
    if id(value) in seen:
        return f"object {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if type(value).__repr__ is object.__repr__:
        return f"{type(value).__qualname__}({_text(vars(value), seen)})"
    words = {name: part for name, part in vars(value).items() if isinstance(part, _WORDS)}
    return f"{value!r}{words}"


def safe_text(value: object, show: Callable[[object], str] = repr) -> str:
    """The text of a value; a text about the error if ``show`` raises, since other ranks would wait."""
    try:
        return show(value)
    except Exception as error:
        name = "str" if show is str else "repr"
        return f"<{type(value).__name__} whose {name} raises {type(error).__name__}>"
