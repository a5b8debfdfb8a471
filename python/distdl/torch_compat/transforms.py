"""Transforms of ``torch.func``, and forward-mode derivatives."""

from __future__ import annotations

import torch

innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The innermost transform that is active, or None."""


def has_forward_derivatives() -> bool:
    """Whether forward-mode derivatives are computed."""
    return torch.autograd.forward_ad._current_level >= 0
