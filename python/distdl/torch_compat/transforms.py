"""Transforms of ``torch.func``, and forward-mode derivatives."""

from __future__ import annotations

import torch
import torch._functorch.apis as batching

__all__ = ["batching", "has_forward_derivatives", "innermost_transform"]

innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The innermost transform that is active, or None."""


def has_forward_derivatives() -> bool:
    """Whether forward-mode derivatives are computed."""
    return torch.autograd.forward_ad._current_level >= 0
