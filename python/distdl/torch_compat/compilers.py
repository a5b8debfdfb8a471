"""Names for torch's compiler, without importing the compiler, which takes a second."""

from __future__ import annotations

import contextlib
import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from distdl.torch_compat.version import TORCH

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])

_by_key: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
# torch keeps compiled programs on disk, where keys of other processes must not match: the first key is random.
_next_keys = itertools.count(random.SystemRandom().getrandbits(52) << 10)


def new_key(x: object) -> int:
    """Give an operator or a layer a number, by which compiled programs find it as long as it lives."""
    key = next(_next_keys)
    _by_key[key] = x
    return key


def of_key(key: int) -> object | None:
    """The operator or layer of this number; None if it was deleted."""
    return _by_key.get(key)


_TOO_OLD = "" if TORCH >= (2, 12) else f"needs torch 2.12 or newer; this is torch {torch.__version__}"


def refuse_objects_in_graphs(what: str) -> None:
    """Raise in a compiled program before torch 2.12, which cannot keep partitions as constants."""
    if _TOO_OLD:
        raise NotImplementedError(f"{what} in a compiled program {_TOO_OLD}")


@contextlib.contextmanager
def same_attributes_in_export(module: object) -> Iterator[None]:
    """Give a module its attributes back: torch.export of torch 2.9 refuses new ones in the module that it exports.

    It can go with torch 2.9.
    """
    before = {**vars(module)}
    try:
        yield
    finally:
        if TORCH < (2, 10) and torch.compiler.is_exporting():
            vars(module).clear()
            vars(module).update(before)


def assume_constant_result(function: AnyFunction) -> AnyFunction:
    """Have compiled programs call the function while they are traced only, and keep its result.

    Source: ``torch.compiler.assume_constant_result``, which sets the same attribute.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
