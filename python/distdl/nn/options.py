"""The options of layers: what they may be, and the messages for what they must not be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import cast

import torch

from distdl.collective.construction import PartitionLike

_LARGEST = 1 << 31  # what is computed from sizes below it fits into 64 bits

# Options of constructors that are no attributes of torch.nn's layers, or are parameters there.
NOT_ATTRIBUTES = ("weight", "bias", "device", "dtype")


def split_arguments(given: Mapping[str, object]) -> tuple[dict[str, PartitionLike], dict[str, object]]:
    """Partitions and options from the local variables at the beginning of a constructor."""
    arguments = {name: value for name, value in given.items() if name not in ("self", "__class__")}
    partitions = {name: value for name, value in arguments.items() if name.startswith("P_")}
    return cast(dict[str, PartitionLike], partitions), {
        name: value for name, value in arguments.items() if name not in partitions
    }


def kind_of(device: torch.device | str | None) -> str | None:
    """What ranks have in common, each of which has a device of its own."""
    return None if device is None else str(device).split(":")[0]


def integer(layer: str, value: object, name: str, whole: object = None) -> int:
    """An int from anything that stands for one exactly.

    Raises:
        TypeError: for anything else.
        RuntimeError: if it is too large for sizes to be computed from it.
    """
    whole = value if whole is None else whole
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{layer}: {name}={whole!r}: {error}") from error
    if abs(number) >= _LARGEST:
        raise RuntimeError(f"{layer}: {name}={whole!r}; it must be less than {_LARGEST}")
    return number


def per_dimension(layer: str, value: object, dims: int, name: str) -> tuple[int, ...]:
    """One int for each spatial dimension from an int or a sequence; a sequence of one stands for all, as in torch.nn.

    Raises:
        RuntimeError: if a sequence has another length, as in torch.nn.
        TypeError: if something else is given.
    """
    each = value if isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0 else (value,)
    values = tuple(integer(layer, one, name, value) for one in each)
    if len(values) not in (1, dims):
        raise RuntimeError(
            f"{layer}: {name}={value!r} has {len(values)} values; the layer has {dims} spatial dimensions"
        )
    return values * (dims // len(values))


def check_choice(layer: str, name: str, value: object, choices: Iterable[str]) -> None:
    """Raises ValueError for what is none of the choices."""
    choices = list(choices)
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{layer}: {name}={value!r}; it must be {', '.join(others)} or {last}")
