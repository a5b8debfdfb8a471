"""The memory of tensors."""

from __future__ import annotations

import torch
from torch._utils import _flatten_dense_tensors as flatten_tensors

from distdl.torch_compat.modes import is_recorded

__all__ = ["address_of_storage", "flatten_tensors", "is_view", "overlaps_itself", "problem_without_memory"]

_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__
_WITH_MEMORY = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
is_view = torch.Tensor._is_view
"""Whether a tensor is a view of another one."""


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor share memory."""
    return bool(torch._debug_has_internal_overlap(tensor) == 1)


def address_of_storage(tensor: torch.Tensor) -> int:
    """Identifies the storage of a tensor, also one without values."""
    return int(torch.Tensor.untyped_storage(tensor)._cdata)


def problem_without_memory(x: object) -> TypeError | None:
    """The error for a tensor without bytes that MPI could send, because its class wraps other tensors; None otherwise.

    Also for a class with a __torch_dispatch__, whose errors in the midst of a call would be raised on this rank alone.
    """
    kind = type(x)
    if kind in _WITH_MEMORY:
        return None
    wraps = hasattr(x, "fake_mode") or hasattr(x, "__tensor_flatten__")
    if not wraps and getattr(kind, "__torch_dispatch__", _PLAIN_DISPATCH) is _PLAIN_DISPATCH:
        return None
    if is_recorded() or (wraps and getattr(x, "layout", None) is not torch.strided):
        return None  # nested tensors and recorders are refused in the call
    why = "no memory of its own" if wraps else "a __torch_dispatch__ of its own"
    return TypeError(f"is a {kind.__name__}, which has {why}; it has to be a plain torch.Tensor")
