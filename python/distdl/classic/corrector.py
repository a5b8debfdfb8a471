"""The function with which a rank without a part of a loss takes part in ``backward()``."""

from __future__ import annotations

from typing import TypeAlias

import torch

Context: TypeAlias = torch.autograd.function.FunctionCtx


class ZeroVolumeCorrectorFunction(torch.autograd.Function):
    """Turn a zero-volume tensor into the scalar 0, on which ``backward()`` can be called; copy any other tensor.

    It takes no communication. The result has the dtype of the input.
    """

    @staticmethod
    def forward(ctx: Context, input: torch.Tensor) -> torch.Tensor:
        """Return 0 for a zero-volume tensor, else a copy."""
        ctx.shape = input.shape
        return input.new_zeros(()) if input.numel() == 0 else input.clone()

    @staticmethod
    def backward(ctx: Context, grad_output: torch.Tensor) -> torch.Tensor:
        """Return the gradient in the shape of the input."""
        return grad_output.new_zeros(ctx.shape) if 0 in ctx.shape else grad_output.clone()
