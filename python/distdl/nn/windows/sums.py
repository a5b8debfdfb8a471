"""Sums over windows, in the order of torch.nn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from distdl.nn.base.precision import wide


def window_sums(x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """The sums over sliding windows, in the order and precision of torch.nn; not rounded to the dtype of x."""
    x = wide(x)
    if len(kernel) == 1:  # avg_pool1d has no divisor_override
        return F.avg_pool2d(x.unsqueeze(-2), (1, *kernel), (1, *stride), divisor_override=1).squeeze(-2)
    return (F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d)(x, kernel, stride, divisor_override=1)


def ravel(positions: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """Positions in the flattened tensor, from positions by dimension: the inverse of ``torch.unravel_index``."""
    flat = positions[0]
    for at, size in zip(positions[1:], sizes[1:], strict=True):
        flat = flat * size + at
    return flat
