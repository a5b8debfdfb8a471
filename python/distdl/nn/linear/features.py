"""The common part of linear layers: parameters, and checks of dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from distdl.nn.base.layer import Layer
from distdl.parameters.initial import like_linear
from distdl.parameters.transport import zero_of
from distdl.partitions.grid import Grid


def check_dtypes(layer: Layer, weight: torch.Tensor, bias: torch.Tensor | None, **inputs: torch.dtype) -> None:
    """Raise for dtypes that torch.nn would refuse, in a set-up, where all ranks know the same."""
    named = dict(inputs) if bias is None else {**inputs, "bias": bias.dtype}
    for name, dtype in named.items():
        if dtype != weight.dtype and layer.autocast is None:
            raise RuntimeError(f"{type(layer).__name__}: the {name} is {dtype} but the weight {weight.dtype}")


def declare_linear(
    layer: Layer, grid: Grid, shape: tuple[int, int], axes: tuple[int | None, int | None], first_of: Sequence[int] = ()
) -> None:
    """Declare a weight of (outputs, inputs) and an optional bias, with the initial values of torch.nn.Linear.

    Args:
        axes: of the grid, which split outputs and inputs.
        first_of: axes along which only the workers at place 0 have the bias.
    """
    of_weight, of_bias = like_linear(shape)
    layer.declare_parameter("weight", grid, shape, axes, initialize=of_weight)
    exists = layer.passed["bias"]
    layer.declare_parameter("bias", grid, shape[:1], axes[:1], first_of=first_of, initialize=of_bias, exists=exists)


def term(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, place: int) -> torch.Tensor:
    """A worker's term of a sum over blocks of inputs; the worker at place 0 adds the bias."""
    if bias is not None and place != 0:
        return F.linear(x, weight) + zero_of(bias)
    return F.linear(x, weight, bias)
