"""Transforms of ``torch.func``, functionalization, and forward-mode derivatives."""

from __future__ import annotations

import torch
from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped

__all__ = ["has_forward_derivatives", "innermost_transform", "is_functional", "is_wrapped"]

innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The innermost transform that is active, or None."""


def is_functional(x: object) -> bool:
    """Whether a tensor is wrapped for functionalization."""
    return isinstance(x, torch.Tensor) and torch._is_functional_tensor(x)


def has_forward_derivatives() -> bool:
    """Whether forward-mode derivatives are computed."""
    return torch.autograd.forward_ad._current_level >= 0
