"""Layers that differ in their number of spatial dimensions alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

Base = TypeVar("Base")
Family = tuple[type[Base], type[Base], type[Base]]


_IN_SPACE = (
    "Conv", "ConvTranspose", "MaxPool", "MaxUnpool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool",
    "ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad", "BatchNorm", "InstanceNorm",
)  # fmt: skip
_SPACE: Mapping[type[torch.nn.Module], int] = {
    getattr(torch.nn, f"{kind}{dims}d"): dims for kind in _IN_SPACE for dims in (1, 2, 3)
}


def space_of(module: torch.nn.Module) -> int | None:
    """The number of spatial dimensions of a layer of torch.nn that is there for one, two and three; None for others."""
    return next((_SPACE[kind] for kind in type(module).__mro__ if kind in _SPACE), None)


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
