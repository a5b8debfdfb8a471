"""Layers that differ only in their number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

from distdl.nn.base.documentation import completed

Base = TypeVar("Base")
Family = tuple[type[Base], type[Base], type[Base]]


_SPATIAL_LAYERS = (
    "Conv", "ConvTranspose", "MaxPool", "MaxUnpool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool",
    "ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad", "BatchNorm", "InstanceNorm",
)  # fmt: skip
_SPATIAL_DIMS: Mapping[type[torch.nn.Module], int] = {
    getattr(torch.nn, f"{kind}{dims}d"): dims for kind in _SPATIAL_LAYERS for dims in (1, 2, 3)
}


def space_of(module: torch.nn.Module) -> int | None:
    """The number of spatial dimensions of a layer of torch.nn with variants for 1, 2 and 3; None for others."""
    return next((_SPATIAL_DIMS[kind] for kind in type(module).__mro__ if kind in _SPATIAL_DIMS), None)


def family(
    name: str, documentation: str, base: type[Base], parents: tuple[type, type, type] | None = None, **fields: str
) -> Family[Base]:
    """The classes of a layer for 1, 2 and 3 spatial dimensions, their attribute ``dims``.

    Args:
        name: of the classes, with ``{dims}`` in place of the number.
        documentation: their docstring, with ``{dims}`` and the names in ``fields``.
        parents: a family of further base classes, by number of dimensions.
    """

    def member(dims: int) -> type[Base]:
        bases = (base,) if parents is None else (base, parents[dims - 1])
        text = documentation.format(dims=dims, **{key: value.format(dims=dims) for key, value in fields.items()})
        layer = name.format(dims=dims)
        fields_of_class = {"dims": dims, "__doc__": completed(text, layer), "__module__": base.__module__}
        return type(layer, bases, fields_of_class)

    return member(1), member(2), member(3)
