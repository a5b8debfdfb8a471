"""The layers that compiled programs call, by number, and what compilers were told of each."""

from __future__ import annotations

import itertools
import random
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from distdl.nn.layer import Layer

Described: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""Sizes and dtype of a tensor."""

_layers: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()
exported: list[Layer] = []  # an exported program may outlive the model that it was made of
# torch keeps compiled programs on disk, where a key of another process must not be found: the first key is random.
_keys = itertools.count(random.SystemRandom().getrandbits(52) << 10)


def new_key(layer: Layer) -> int:
    """The number by which compiled programs know a layer."""
    key = next(_keys)
    _layers[key] = layer
    return key


@dataclass
class Record:
    """Facts about a layer that compiled programs rely on.

    Attributes:
        results: the structure of the results, by the call and the structure of its tensors.
        forms: how the results are put together, see :func:`form_of`, and the class of a named tuple of them; by the
            call.
        promised: the structure for which the program of the call under way was compiled.
        guesses: whether sizes may be concluded from those of other tensors; each call of a compiled program checks.
    """

    results: dict[tuple[str, tuple[Described, ...]], list[Described]] = field(default_factory=dict)
    forms: dict[str, tuple[str, type | None]] = field(default_factory=dict)
    promised: list[Described] | None = None
    guesses: bool = True


records: weakref.WeakKeyDictionary[Layer, Record] = weakref.WeakKeyDictionary()


def layer_of(key: int) -> Layer:
    """The layer of this number."""
    layer = _layers.get(key)
    if layer is None:
        raise RuntimeError(
            "a compiled program calls a layer that is gone, or that was compiled anew since; keep the model for as "
            "long as the program"
        )
    return layer
