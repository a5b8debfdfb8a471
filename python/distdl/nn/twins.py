"""Which layer does in blocks what a layer of torch.nn does in one process."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import torch

from distdl.nn.layer import Layer


def twins(families: Iterable[ModuleType]) -> dict[type[torch.nn.Module], type[Layer]]:
    """The layer for each class of torch.nn; of several the one that is named like it."""
    found: dict[type[torch.nn.Module], type[Layer]] = {}
    for family in families:
        for name in family.__all__:
            layer = getattr(family, name)
            if not (isinstance(layer, type) and issubclass(layer, Layer)):
                continue
            for twin in layer.sequential_classes():
                if not twin.__module__.startswith("torch."):
                    continue  # a sequential layer of this package
                if twin not in found or layer.__name__ == f"Distributed{twin.__name__}":
                    found[twin] = layer
    return found
