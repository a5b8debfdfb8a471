"""Layers that differ in their number of spatial dimensions alone."""

from __future__ import annotations

from typing import TypeVar

Base = TypeVar("Base")
Family = tuple[type[Base], type[Base], type[Base]]


def family(
    name: str, documentation: str, base: type[Base], parents: tuple[type, type, type] | None = None, **more: str
) -> Family[Base]:
    """The classes of a layer for one, two and three spatial dimensions, which their attribute ``dims`` tells.

    Args:
        name: of the classes, with ``{dims}`` where the number stands.
        documentation: their docstring, likewise, with the names in ``more`` too.
        base: what they derive from.
        parents: a family that they derive from as well, each from the one of as many dimensions.
    """

    def member(dims: int) -> type[Base]:
        bases = (base,) if parents is None else (base, parents[dims - 1])
        text = documentation.format(dims=dims, **{key: value.format(dims=dims) for key, value in more.items()})
        return type(name.format(dims=dims), bases, {"dims": dims, "__doc__": text, "__module__": base.__module__})

    return member(1), member(2), member(3)
