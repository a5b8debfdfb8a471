"""Python values as JSON and tensors: a file that is never unpickled runs no code of its author."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch

from distdl.checkpoint.stored import NAMES, as_stored, check_strided

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None


def encoded(value: object, name: str, tensors: dict[str, torch.Tensor]) -> JSON:
    """A value as JSON; tensors and arrays in it are added to ``tensors``, by a name that begins with ``name``.

    Raises:
        TypeError: for what is neither a number, a string, a tensor, an array, nor a list, tuple,
            dict or Counter of such.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 and not value.is_complex():
            return {"$scalar": [str(value.dtype).removeprefix("torch."), value.item()]}
        return _kept(value, name, tensors)
    if isinstance(value, np.ndarray):
        own = value.astype(value.dtype.newbyteorder("="), order="C")  # the only order of bytes that torch knows
        return {"$array": _kept(torch.from_numpy(own), name, tensors)}
    if isinstance(value, list | tuple):
        items: list[JSON] = [encoded(one, f"{name}/{i}", tensors) for i, one in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} is of type {type(value).__name__}; a checkpoint holds numbers, strings, tensors, arrays, and "
            "lists, tuples and dicts of them (of an object, its state_dict())"
        )
    if not isinstance(value, Counter) and all(isinstance(key, str) and key[:1] != "$" for key in value):
        return {key: encoded(one, f"{name}/{key}", tensors) for key, one in value.items()}
    pairs: list[JSON] = [
        [encoded(key, f"{name}/{i}", tensors), encoded(one, f"{name}/{i}/value", tensors)]
        for i, (key, one) in enumerate(value.items())
    ]
    return {"$counter" if isinstance(value, Counter) else "$items": pairs}


def _kept(value: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> JSON:
    check_strided(name, value)
    tensors[name] = as_stored(value)
    return {"$complex" if value.dtype is torch.complex128 else "$tensor": name}


def decoded(value: JSON, tensors: Mapping[str, torch.Tensor]) -> object:
    """The value that was encoded."""
    if isinstance(value, list):
        return [decoded(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if kind in _DECODED:
        return _DECODED[kind](value[kind], tensors)
    return {key: decoded(one, tensors) for key, one in value.items()}


def items_of(value: JSON) -> list[JSON]:
    """The items of a list. Raises ValueError where a file that says that it is ours has something else there."""
    if not isinstance(value, list):
        raise ValueError(f"the metadata has {value!r} in place of a list")
    return value


def members_of(value: JSON) -> dict[str, JSON]:
    """The members of an object, as :func:`items_of`."""
    if not isinstance(value, dict):
        raise ValueError(f"the metadata has {value!r} in place of an object")
    return value


def _scalar(value: JSON, tensors: Mapping[str, torch.Tensor]) -> object:
    dtype, number = items_of(value)
    return torch.tensor(number, dtype=_DTYPES[str(dtype)], device="cpu")


def _pairs(value: JSON, tensors: Mapping[str, torch.Tensor]) -> dict[object, object]:
    pairs = [items_of(pair) for pair in items_of(value)]
    return {decoded(key, tensors): decoded(one, tensors) for key, one in pairs}


def _array(value: JSON, tensors: Mapping[str, torch.Tensor]) -> object:
    tensor = tensors[value] if isinstance(value, str) else decoded(value, tensors)
    assert isinstance(tensor, torch.Tensor)
    return tensor.numpy()


_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}

_DECODED: dict[str, Callable[[JSON, Mapping[str, torch.Tensor]], object]] = {
    "$scalar": _scalar,
    "$tensor": lambda name, tensors: tensors[str(name)],
    "$complex": lambda name, tensors: torch.view_as_complex(tensors[str(name)]),
    "$array": _array,
    "$tuple": lambda items, tensors: tuple(decoded(one, tensors) for one in items_of(items)),
    "$items": _pairs,
    "$counter": lambda pairs, tensors: Counter(_pairs(pairs, tensors)),
}
