"""The rules of precision: the dtypes of sums and of results."""

from __future__ import annotations

import torch

HALF = (torch.half, torch.bfloat16)
FLOATING = (*HALF, torch.float, torch.double)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the precision in which sums are computed: single precision for half."""
    return tensor.float() if tensor.dtype in HALF else tensor


def loss_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of a loss. Autocast leaves losses of half precision in single precision, as in torch.nn."""
    return torch.float32 if dtype in HALF and torch.is_autocast_enabled(device.type) else dtype
