"""The moments of a worker's block.

The derivatives that torch has of a composed formula pass over a large block about three times as often as needed, and
keep further tensors of its size. So a large block has kernels of our own, which pass over it once in each direction;
nothing but the input is kept. Derivatives of derivatives are those of torch's operations.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from distdl import _core

LARGE = 1 << 15  # elements of a block from which on it has kernels of its own

Context: TypeAlias = torch.autograd.function.FunctionCtx
Moments: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def moments(x: torch.Tensor) -> tuple[torch.Tensor, Moments]:
    """The moments of each channel of a block (N, C, *others).

    Returns:
        The tensor to go on with in place of x, and three tensors of the channels: the mean as far as the precision of
        the block has it, which counts as constant in derivatives; the rest of the mean, in double precision; and the
        sum of the squared deviations from the mean, in double precision. All are 0 for channels without elements.
    """
    if x.numel() < LARGE or _is_transformed():
        return x, _moments(x)
    followed, *found = _Moments.apply(x)
    return followed, (found[0], found[1], found[2])


def _is_transformed() -> bool:
    """Whether torch's own operations are needed: by compilers, torch.func, and forward derivatives."""
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _moments(x: torch.Tensor) -> Moments:
    dims = [d for d in range(x.dim()) if d != 1]
    n = max(1, x[:, :1].numel()) if x.shape[1] else 1
    pivot = x.detach().sum(dims) / n
    deviations = x - per_channel(pivot, x)
    rest = deviations.sum(dims).double() / n
    return pivot, rest, deviations.square().sum(dims).double() - n * rest.square()


def per_channel(one: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A value for each channel, in a shape that fits (N, C, *others)."""
    return one.view(-1, *[1] * (x.dim() - 2))


class _Moments(torch.autograd.Function):
    """What is done with x afterwards is done with the first result, whose gradient comes in here."""

    @staticmethod
    def forward(ctx: Context, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if x.is_cpu and x.is_contiguous():
            mean, squares = _core.channel_moments(x)
            pivot = mean.to(x.dtype)
            rest = mean - pivot
        else:
            pivot, rest, squares = _moments(x)
        ctx.save_for_backward(x, pivot, rest)
        ctx.mark_non_differentiable(pivot)
        return x.view_as(x), pivot, rest, squares

    @staticmethod
    def backward(ctx: Context, gradient: torch.Tensor, *of_moments: torch.Tensor) -> torch.Tensor:
        x, pivot, rest = ctx.saved_tensors
        _, of_rest, of_squares = of_moments
        slope = 2 * of_squares
        constant = of_rest / x[:, :1].numel() - slope * rest
        pivot, constant, slope = (one.to(x.dtype) for one in (pivot, constant, slope))
        if torch.is_grad_enabled() or not (x.is_cpu and x.is_contiguous() and gradient.is_contiguous()):
            pivot, constant, slope = (per_channel(one, x) for one in (pivot, constant, slope))
            return torch.addcmul(gradient + constant, x - pivot, slope)
        _core.add_to_channels(gradient, x, pivot, slope, constant)  # nothing else has the gradient of the first result
        return gradient
