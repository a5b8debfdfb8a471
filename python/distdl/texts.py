"""Texts of a program's values, for messages."""

from __future__ import annotations

from collections.abc import Callable


def safe_text(value: object, show: Callable[[object], str] = repr) -> str:
    """The text of a value; a text about the error if ``show`` raises, since other ranks would wait."""
    try:
        return show(value)
    except Exception as error:
        return f"<{type(value).__name__} whose {show.__name__} raises {type(error).__name__}>"
