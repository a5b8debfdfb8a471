"""Models of packages that people use, with inputs as small as they allow: a module for each package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence

import torch

from zoo.entry import Entry, Shape

try:
    importlib.import_module("torchvision")
except ImportError:
    pass
except RuntimeError:  # the wheel misses its operators beside another build of torch
    _LIBRARY = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _LIBRARY.define(f"{_name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")

__all__ = ["PACKAGES", "Entry", "Shape", "entries"]

PACKAGES = (
    "torchvision", "monai", "timm", "smp", "vit_pytorch", "nnunet", "neuralop", "the_well", "transformers", "diffusers",
    "open_clip", "x_transformers", "torch_harmonics",
)  # fmt: skip
"""The modules of this package, each of which says how its package is installed."""


def entries(packages: Sequence[str] = PACKAGES) -> Iterator[Entry]:
    """All models, without those of packages that are not installed, for which a line is written."""
    for package in packages:
        try:
            module = importlib.import_module(f"zoo.{package}")
        except ImportError as error:
            print(f"without {package}: {error}", file=sys.stderr)
        else:
            yield from module.entries()
