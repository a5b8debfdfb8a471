"""Python values as JSON and tensors, without pickle: a file runs no code of its author."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch

from distdl.checkpoint.stored import NAMES, check_strided, stored_view

DEEPEST = 64  # lists, tuples and dicts within each other; Python's stack has room for them wherever load() is called

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None


def encoded(value: object, name: str, tensors: dict[str, torch.Tensor], depth: int = 0) -> JSON:
    """A value as JSON; its tensors and arrays are added to ``tensors``, by names that begin with ``name``.

    Raises:
        TypeError: for anything but numbers, strings, tensors, arrays, and lists, tuples, dicts and Counters of them.
        ValueError: for values that are nested too deep, such as a list that holds itself.
    """
    _check_depth(depth)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 and not value.is_complex():
            return {"$scalar": [str(value.dtype).removeprefix("torch."), value.item()]}
        return _reference(value, name, tensors)
    if isinstance(value, np.ndarray):
        native = value.astype(value.dtype.newbyteorder("="), order="C")  # the only order of bytes that torch knows
        return {"$array": _reference(torch.from_numpy(native), name, tensors)}
    if isinstance(value, list | tuple):
        items: list[JSON] = [encoded(item, f"{name}/{i}", tensors, depth + 1) for i, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} is of type {type(value).__name__}; a checkpoint holds numbers, strings, tensors, arrays, and "
            "lists, tuples and dicts of them (of an object, its state_dict())"
        )
    if not isinstance(value, Counter) and all(isinstance(key, str) and key[:1] != "$" for key in value):
        return {key: encoded(item, f"{name}/{key}", tensors, depth + 1) for key, item in value.items()}
    pairs: list[JSON] = [
        [encoded(key, f"{name}/{i}", tensors, depth + 1), encoded(item, f"{name}/{i}/value", tensors, depth + 1)]
        for i, (key, item) in enumerate(value.items())
    ]
    return {"$counter" if isinstance(value, Counter) else "$items": pairs}


def _reference(value: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> JSON:
    check_strided(name, value)
    tensors[name] = stored_view(value)
    return {"$complex" if value.dtype is torch.complex128 else "$tensor": name}


def decoded(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int = 0) -> object:
    """The value that was encoded. It shares the memory of ``tensors``, which loading may fill afterwards.

    Raises:
        ValueError: for values that :func:`encoded` never makes.
    """
    _check_depth(depth)
    if isinstance(value, list):
        return [decoded(item, tensors, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next((key for key in value if key[:1] == "$"), None)
    if kind is None:
        return {key: decoded(item, tensors, depth + 1) for key, item in value.items()}
    if len(value) > 1 or kind not in _DECODED:
        raise ValueError(
            f"the metadata has an object with the members {list(value)}, which is no value that save() writes"
        )
    return _DECODED[kind](value[kind], tensors, depth)


def _check_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"a checkpoint holds values within values {DEEPEST} deep; these are deeper")


def items_of(value: JSON) -> list[JSON]:
    """The items of a list. Raises ValueError for anything else."""
    if not isinstance(value, list):
        raise ValueError(f"the metadata has {value!r} in place of a list")
    return value


def members_of(value: JSON) -> dict[str, JSON]:
    """The members of an object. Raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"the metadata has {value!r} in place of an object")
    return value


def _scalar(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> object:
    dtype, number = _pair_of(value)
    torch_dtype = _DTYPES_BY_NAME.get(str(dtype))
    if torch_dtype is None or torch_dtype.is_complex:
        raise ValueError(f"the metadata has a scalar of dtype {dtype!r}")
    kinds = (int, float) if torch_dtype.is_floating_point else (bool,) if torch_dtype is torch.bool else (int,)
    if type(number) not in kinds:
        raise ValueError(f"the metadata has {number!r} in place of a number of dtype {dtype}")
    try:
        return torch.tensor(number, dtype=torch_dtype, device="cpu")
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"the metadata has {number!r} in place of a number of dtype {dtype}: {error}") from None


def _pair_of(value: JSON) -> list[JSON]:
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
    return tuple(decoded(item, tensors, depth + 1) for item in items_of(value))


def _pairs(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> dict[object, object]:
    items: dict[object, object] = {}
    for pair in items_of(value):
        key, item = (decoded(half, tensors, depth + 1) for half in _pair_of(pair))
        try:
            items[key] = item
        except TypeError:
            raise ValueError(f"the metadata has a {type(key).__name__} in place of a key") from None
    return items


def _counter(value: JSON, tensors: Mapping[str, torch.Tensor], depth: int) -> object:
    return Counter(_pairs(value, tensors, depth))


_DTYPES_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}

_DECODED: dict[str, Callable[[JSON, Mapping[str, torch.Tensor], int], object]] = {
    "$scalar": _scalar,
    "$tensor": _tensor,
    "$complex": _complex,
    "$array": _array,
    "$tuple": _tuple,
    "$items": _pairs,
    "$counter": _counter,
}
VALUE_KINDS = tuple(_DECODED)
"""The type tags: keys of objects for values that JSON lacks."""
