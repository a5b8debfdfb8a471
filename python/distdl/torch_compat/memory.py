"""The memory of tensors."""

from __future__ import annotations

import torch
from torch._utils import _flatten_dense_tensors as flatten_tensors

__all__ = ["address_of_storage", "flatten_tensors", "is_view", "overlaps_itself"]

is_view = torch.Tensor._is_view
"""Whether a tensor is a view of another one."""


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor share memory."""
    return bool(torch._debug_has_internal_overlap(tensor) == 1)


def address_of_storage(tensor: torch.Tensor) -> int:
    """Identifies the storage of a tensor, also one without values."""
    return int(torch.Tensor.untyped_storage(tensor)._cdata)


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first element of a tensor in memory, and of the end of the last."""
    if not tensor.numel():
        return 0, 0
    first = tensor.data_ptr()
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (steps + 1) * tensor.element_size()
