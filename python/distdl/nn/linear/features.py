"""The checks of options and dtypes that linear layers have in common."""

from __future__ import annotations

import torch

from distdl.nn.layer import Layer
from distdl.nn.options import integer


def check_features(layer: Layer, *names: str, least: int = 0) -> None:
    """Make options integers, and refuse less than a number."""
    name = type(layer).__name__
    for which in names:
        value = integer(name, getattr(layer, which), which)
        setattr(layer, which, value)
        if value < least:
            rule = "must not be negative" if least == 0 else f"must be at least {least}"
            raise RuntimeError(f"{name}: {which}={value}; it {rule}")


def check_dtypes(layer: Layer, weight: torch.Tensor, bias: torch.Tensor | None, **inputs: torch.dtype) -> None:
    """Refuse dtypes that torch.nn would refuse, in a set-up, where all ranks know the same."""
    named = dict(inputs) if bias is None else {**inputs, "bias": bias.dtype}
    for what, dtype in named.items():
        if dtype != weight.dtype and layer.autocast is None:
            raise RuntimeError(f"{type(layer).__name__}: the {what} is {dtype} but the weight {weight.dtype}")
