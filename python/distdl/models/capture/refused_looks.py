"""Refuse looks at values that are not known while a model is recorded, with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

OF_VALUES = {
    "__array__", "__bool__", "__complex__", "__float__", "__index__", "__int__", "allclose", "arange", "argwhere",
    "bincount", "equal", "is_nonzero", "item", "nonzero", "numpy", "repeat_interleave", "tolist", "unique",
    "unique_consecutive", "where",
}  # fmt: skip
"""Functions that look at values, or whose results have a shape that depends on values."""
TEXT = "a text"
_ARE_LOOKS = {name.strip("_") for name in OF_VALUES} | {TEXT}
_INSTEAD = {
    "bincount": "Write torch.nn.functional.one_hot(x, classes).sum(0), or torch.histc(x, bins, min, max)",
    "nonzero": "Write torch.where(mask, x, other)",
    "one_hot": "Say num_classes",
    "repeat_interleave": "Repeat as often as a number says",
    "where": "Write torch.where(mask, x, other)",
    TEXT: "Print its shape, or its blocks by a forward hook",
}
"""Replacements for looks, and for functions whose results have a shape that depends on values."""
_OTHERWISE = (
    "Where it only checks, use torch._assert_async; where it chooses, torch.where, or an option of the model that "
    "leaves the choice out"
)


class UnknownValuesError(NotImplementedError):
    """A function depends on values that are not known.

    Args:
        key: the name of the function.
        place: the line of the program in which it is called.

    Attributes:
        is_look: whether it may be called where looks are made.
    """

    def __init__(self, key: str, place: str) -> None:
        super().__init__(
            f"{key} looks at the values of a tensor, at {place}; they are not known before the model runs. "
            f"{_INSTEAD.get(key, _OTHERWISE)}"
        )
        self.is_look = key in _ARE_LOOKS


@contextmanager
def advising(advice: str = "") -> Iterator[None]:
    """Raise NotImplementedError for functions that depend on unknown values, with an advice for looks."""
    try:
        yield
    except UnknownValuesError as error:
        raise NotImplementedError(f"{error}; {advice}" if advice and error.is_look else str(error)) from error
