"""Texts of a program's values, for messages."""

from __future__ import annotations

from collections.abc import Callable


def text_of(value: object) -> str:
    """The text of a value; of an object without a text of its own the attributes, since its address differs by rank."""
    if type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__"):
        return f"{type(value).__qualname__}({vars(value)})"
    return repr(value)


def safe_text(value: object, show: Callable[[object], str] = repr) -> str:
    """The text of a value; a text about the error if ``show`` raises, since other ranks would wait."""
    try:
        return show(value)
    except Exception as error:
        name = "str" if show is str else "repr"
        return f"<{type(value).__name__} whose {name} raises {type(error).__name__}>"
