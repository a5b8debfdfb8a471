"""Texts of a program's values, for messages."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import FunctionType, MethodType, ModuleType


def text_of(value: object, within: tuple[int, ...] = ()) -> str:
    """The text of a value, and of the attributes of objects: the text of an object may hide them, or be an address.

    Args:
        within: the ids of the objects that hold the value.
    """
    if id(value) in within:
        return "..."
    within = (*within, id(value))
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(text_of(part, within) for part in value)})"  # type: ignore[attr-defined]
    if type(value) is dict:
        return f"dict({', '.join(f'{key!r}: {text_of(part, within)}' for key, part in value.items())})"
    if hasattr(value, "__dict__") and not isinstance(value, type | FunctionType | MethodType | ModuleType | Enum):
        text = "" if type(value).__repr__ is object.__repr__ else repr(value)
        return f"{type(value).__qualname__}({text_of(vars(value), within)}){text}"
    return repr(value)


def safe_text(value: object, show: Callable[[object], str] = repr) -> str:
    """The text of a value; a text about the error if ``show`` raises, since other ranks would wait."""
    try:
        return show(value)
    except Exception as error:
        name = "str" if show is str else "repr"
        return f"<{type(value).__name__} whose {name} raises {type(error).__name__}>"
