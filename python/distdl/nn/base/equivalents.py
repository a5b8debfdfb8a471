"""Registry of the layers for classes of torch.nn."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import torch

from distdl.nn.base.layer import Layer


def layers_by_class(families: Iterable[ModuleType]) -> dict[type[torch.nn.Module], type[Layer]]:
    """The layer for each class of torch.nn; of several, the layer of the same name."""
    layers: dict[type[torch.nn.Module], type[Layer]] = {}
    for family in families:
        for name in family.__all__:
            layer = getattr(family, name)
            if not (isinstance(layer, type) and issubclass(layer, Layer)):
                continue
            for twin in layer.sequential_classes():
                if not twin.__module__.startswith("torch."):
                    continue  # a sequential layer of this package
                if twin not in layers or layer.__name__ == f"Distributed{twin.__name__}":
                    layers[twin] = layer
    return layers
