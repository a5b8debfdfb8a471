"""Dtypes of sums and of results."""

from __future__ import annotations

from collections.abc import Callable

import torch

HALF = (torch.half, torch.bfloat16)
FLOATING = (*HALF, torch.float, torch.double)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the precision of sums: single precision for half."""
    return tensor.float() if tensor.dtype in HALF else tensor


def as_under_autocast(input: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor], dims: int) -> torch.Tensor:
    """An input of half precision in the precision that autocast chooses for a function of torch.

    Autocast's lists differ by device and version: the function is tried on an element in `dims` dimensions.
    """
    if input.dtype not in HALF or not torch.is_autocast_enabled(input.device.type):
        return input
    with torch.no_grad():
        dtype = function(input.new_zeros([1] * dims)).dtype
    return input.to(dtype)


def lowered(input: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """An input in autocast's dtype; None where it is off. Double precision stays."""
    return input if dtype is None or input.dtype == torch.double else input.to(dtype)


def loss_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of a loss. Autocast computes losses of half precision in single precision, as in torch.nn."""
    return torch.float32 if dtype in HALF and torch.is_autocast_enabled(device.type) else dtype
