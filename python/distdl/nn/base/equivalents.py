"""Registry of the layers for classes of torch.nn."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import torch

from distdl.nn.base.layer import Layer

LAYERS_BY_CLASS: dict[type[torch.nn.Module], type[Layer]] = {}
"""The layers of this package by class of torch.nn: :data:`distdl.nn.SEQUENTIAL`."""


def register(families: Iterable[ModuleType]) -> None:
    """Register the layers of all families by class of torch.nn; of several for a class, the layer of the same name."""
    for family in families:
        for layer in (getattr(family, name) for name in family.__all__):
            if not (isinstance(layer, type) and issubclass(layer, Layer)):
                continue
            for twin in layer.sequential_classes():
                if not twin.__module__.startswith("torch."):
                    continue  # a sequential layer of this package
                if twin not in LAYERS_BY_CLASS or layer.__name__ == f"Distributed{twin.__name__}":
                    LAYERS_BY_CLASS[twin] = layer
