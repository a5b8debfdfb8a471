"""Python values as JSON and tensors: a file that is never unpickled runs no code of its author."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch

from distdl.checkpoint.stored import NAMES, as_stored, check_strided

DEEPEST = 64  # lists, tuples and dicts within each other; Python's stack has room for them wherever load() is called

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None


def encoded(value: object, name: str, tensors: dict[str, torch.Tensor], depth: int = 0) -> JSON:
    """A value as JSON; tensors and arrays in it are added to ``tensors``, by a name that begins with ``name``.

    Raises:
        TypeError: for what is neither a number, a string, a tensor, an array, nor a list, tuple,
            dict or Counter of such.
        ValueError: for values within values that are too deep, as a list that holds itself.
    """
    _check_depth(depth)
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
        items: list[JSON] = [encoded(one, f"{name}/{i}", tensors, depth + 1) for i, one in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} is of type {type(value).__name__}; a checkpoint holds numbers, strings, tensors, arrays, and "
            "lists, tuples and dicts of them (of an object, its state_dict())"
        )
    if not isinstance(value, Counter) and all(isinstance(key, str) and key[:1] != "$" for key in value):
        return {key: encoded(one, f"{name}/{key}", tensors, depth + 1) for key, one in value.items()}
    pairs: list[JSON] = [
        [encoded(key, f"{name}/{i}", tensors, depth + 1), encoded(one, f"{name}/{i}/value", tensors, depth + 1)]
        for i, (key, one) in enumerate(value.items())
    ]
    return {"$counter" if isinstance(value, Counter) else "$items": pairs}


def _kept(value: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> JSON:
    check_strided(name, value)
    tensors[name] = as_stored(value)
    return {"$complex" if value.dtype is torch.complex128 else "$tensor": name}


def decoded(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int = 0) -> object:
    """The value that was encoded. It shares the memory of the tensors, whose values may be read later.

    Raises:
        ValueError: for what :func:`encoded` never makes.
    """
    _check_depth(depth)
    if isinstance(value, list):
        return [decoded(one, tensors, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    kind = next((key for key in value if key[:1] == "$"), None)
    if kind is None:
        return {key: decoded(one, tensors, depth + 1) for key, one in value.items()}
    if len(value) > 1 or kind not in _DECODED:
        raise ValueError(f"the metadata has an object with the members {list(value)}, which stands for no value")
    return _DECODED[kind](value[kind], tensors, depth)


def _check_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"a checkpoint holds values within values {DEEPEST} deep; these are deeper")


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


def _scalar(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> object:
    dtype, number = _two(value)
    of = _DTYPES.get(str(dtype))
    if of is None or of.is_complex:
        raise ValueError(f"the metadata has a scalar of dtype {dtype!r}")
    kinds = (int, float) if of.is_floating_point else (bool,) if of is torch.bool else (int,)
    if type(number) not in kinds:
        raise ValueError(f"the metadata has {number!r} in place of a number of dtype {dtype}")
    try:
        return torch.tensor(number, dtype=of, device="cpu")
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"the metadata has {number!r} in place of a number of dtype {dtype}: {error}") from None


def _two(value: JSON) -> list[JSON]:
    items = items_of(value)
    if len(items) != 2:
        raise ValueError(f"the metadata has a list of {len(items)} in place of a pair")
    return items


def _tensor(name: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> torch.Tensor:
    if not isinstance(name, str) or name not in tensors:
        raise ValueError(f"the metadata names a tensor {name!r}, which the file does not have")
    return tensors[name]


def _complex(name: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> torch.Tensor:
    tensor = _tensor(name, tensors, depth)
    if tensor.dtype is not torch.float64 or tensor.shape[-1:] != (2,):
        raise ValueError(f"the tensor {name} is of {tensor.dtype} and shape {list(tensor.shape)}: no complex numbers")
    return torch.view_as_complex(tensor)


def _array(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> object:
    tensor = _tensor(value, tensors, depth) if isinstance(value, str) else decoded(value, tensors, depth + 1)
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"the metadata has {value!r} in place of an array")
    try:
        return tensor.numpy()
    except TypeError as error:  # a dtype that NumPy does not have
        raise ValueError(f"the metadata has an array of {tensor.dtype}: {error}") from None


def _tuple(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> object:
    return tuple(decoded(one, tensors, depth + 1) for one in items_of(value))


def _pairs(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> dict[object, object]:
    found: dict[object, object] = {}
    for pair in items_of(value):
        key, one = (decoded(half, tensors, depth + 1) for half in _two(pair))
        try:
            found[key] = one
        except TypeError:
            raise ValueError(f"the metadata has a {type(key).__name__} in place of a key") from None
    return found


def _counter(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> object:
    return Counter(_pairs(value, tensors, depth))


_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}

_DECODED: dict[str, Callable[[JSON, Mapping[str, torch.Tensor], int], object]] = {
    "$scalar": _scalar,
    "$tensor": _tensor,
    "$complex": _complex,
    "$array": _array,
    "$tuple": _tuple,
    "$items": _pairs,
    "$counter": _counter,
}
KINDS = tuple(_DECODED)
"""The names of the objects that stand for values which JSON does not have."""
