"""Checks of the options of layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from operator import index
from typing import cast

import torch
from torch.nn.parameter import is_lazy

from distdl.partitions.construction import PartitionLike

_LARGEST = 1 << 31  # products of two smaller numbers fit into 64 bits

# Options of constructors that are not attributes of torch.nn's layers, or are parameters there.
NOT_ATTRIBUTES = ("weight", "pos_weight", "bias", "device", "dtype")


def split_arguments(local_variables: Mapping[str, object]) -> tuple[dict[str, PartitionLike], dict[str, object]]:
    """Split the local variables of a constructor into partitions and options."""
    arguments = {name: value for name, value in local_variables.items() if name not in ("self", "__class__")}
    partitions = {name: value for name, value in arguments.items() if name.startswith("P_")}
    return cast(dict[str, PartitionLike], partitions), {
        name: value for name, value in arguments.items() if name not in partitions
    }


def comparable(value: object) -> object:
    """The part of an option that is equal on all ranks: the name of a function, since its repr has an address."""
    return (
        getattr(value, "__qualname__", value) if callable(value) and not isinstance(value, torch.nn.Module) else value
    )


def refuse_lazy(what: str, module: torch.nn.Module) -> None:
    """Raise TypeError if a module has parameters without shapes before its first call."""
    for part in module.modules():
        if any(map(is_lazy, part.parameters(recurse=False))):
            kind = type(part).__name__
            raise TypeError(f"{what}: the parameters of this {kind} are not initialized; call the module once before")


def kind_of(device: torch.device | str | None) -> str | None:
    """The type of a device, such as "cuda", equal on all ranks."""
    return None if device is None else str(device).split(":")[0]


def integer(layer: str, value: object, name: str, whole: object = None) -> int:
    """An option as an int.

    Args:
        value: an int, or an object with ``__index__``.
        whole: the whole option that messages show, if ``value`` is a part of it.

    Raises:
        TypeError: if the value is not an integer.
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


def number(layer: str, value: object, name: str) -> float:
    """An option as a float. Raises TypeError if the value is not a real number."""
    if not isinstance(value, Real):
        raise TypeError(f"{layer}: {name}={value!r}; it must be a number")
    return float(value)


def floating(layer: str, value: object, name: str) -> float:
    """An option as a float. Raises TypeError unless ``float`` converts it; True and False are no numbers."""
    if isinstance(value, bool):
        raise TypeError(f"{layer}: {name}={value!r} is not a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{layer}: {name}={value!r} is not a number") from error


def flag(layer: str, value: object, name: str) -> bool:
    """Raise TypeError unless an option is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{layer}: {name}={value!r}; it must be True or False")
    return value


def per_dimension(layer: str, value: object, dims: int, name: str) -> tuple[int, ...]:
    """An int for each spatial dimension, from an int or a sequence.

    As in torch.nn, an int or a sequence of length 1 holds for all dimensions.

    Raises:
        RuntimeError: if a sequence has another length, as in torch.nn.
        TypeError: if a value is not an integer.
    """
    each = value if isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0 else (value,)
    values = tuple(integer(layer, number, name, value) for number in each)
    if len(values) not in (1, dims):
        raise RuntimeError(
            f"{layer}: {name}={value!r} has {len(values)} values; the layer has {dims} spatial dimensions"
        )
    return values * (dims // len(values))


def integers(layer: str, value: object, name: str) -> list[int]:
    """An option as a list of ints. Raises TypeError unless it is a sequence of integers."""
    if not isinstance(value, Sequence):
        raise TypeError(f"{layer}: {name}={value!r}; it must be a sequence of integers")
    return [integer(layer, number, name, value) for number in value]


def check_choice(
    layer: str, name: str, value: object, choices: Iterable[str], error: type[Exception] = ValueError
) -> object:
    """An option that is among the choices; otherwise raises the error."""
    choices = list(choices)
    if value not in choices:
        *others, last = map(repr, choices)
        raise error(f"{layer}: {name}={value!r}; it must be {', '.join(others)} or {last}")
    return value
