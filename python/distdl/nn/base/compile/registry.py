"""Registry of the layers that compiled programs call, with the structures told to compilers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

import torch

from distdl import _core
from distdl.partitions.grid import Grid
from distdl.torch_compat.compilers import of_key

SizesAndDtype: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""Sizes and dtype of a tensor."""


class TracedLayer(Protocol):
    """A layer as compiled programs call it."""

    key_in_graphs: int

    @property
    def agreement(self) -> _core.LayerAgreement | None: ...

    @property
    def all_ranks(self) -> Grid: ...

    def call(self, *args: object, **kwargs: object) -> object: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def buffers(self) -> Iterator[torch.Tensor]: ...


exported: list[TracedLayer] = []  # exported programs may outlive their models


@dataclass
class Record:
    """Facts about a layer that compiled programs rely on.

    Attributes:
        results: the structure of the results, by the call and the structure of its tensors.
        forms: the form of the results, see :func:`result_form`, and the class of a named tuple; by the call.
        promised: the structure for which the program of the current call was compiled.
        guesses: whether sizes may be inferred from earlier calls; each call of a compiled program checks them.
    """

    results: dict[tuple[str, tuple[SizesAndDtype, ...]], list[SizesAndDtype]] = field(default_factory=dict)
    forms: dict[str, tuple[str, type | None]] = field(default_factory=dict)
    promised: list[SizesAndDtype] | None = None
    guesses: bool = True


records: weakref.WeakKeyDictionary[TracedLayer, Record] = weakref.WeakKeyDictionary()


def registered_layer(key: int) -> TracedLayer:
    """The layer of this number."""
    layer = cast(TracedLayer | None, of_key(key))
    if layer is None:
        raise RuntimeError(
            "a compiled program calls a layer that was deleted or compiled anew; keep the model as long as the program"
        )
    return layer
