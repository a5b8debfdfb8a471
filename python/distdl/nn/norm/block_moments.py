"""The moments of a worker's block.

The derivatives that torch has of a composed formula pass over a large block about three times as often as needed, and
keep further tensors of its size. So a large block has kernels of our own, which pass over it once in each direction;
nothing but the input is kept. Derivatives of derivatives are those of torch's operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

from distdl import _core

LARGE = 1 << 15  # elements of a block from which on it has kernels of its own

Context: TypeAlias = torch.autograd.function.FunctionCtx
Moments: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass
class DeferredScale:
    """The factor by which the backward pass of the moments still has to multiply the gradient of the block.

    The contexts of both functions hold it, and the collector does not see what autograd's graph in C++ holds. So the
    scale has no history, and is there from one backward pass to the other alone: with a history it would keep the
    graph of everything before the normalization alive.
    """

    scale: torch.Tensor | None = None

    def defer(self, scale: torch.Tensor) -> None:
        """Leave the multiplication to the backward pass of the moments."""
        self.scale = scale.detach()

    def take(self) -> torch.Tensor | None:
        """The scale, once."""
        scale, self.scale = self.scale, None
        return scale


def moments(x: torch.Tensor) -> tuple[torch.Tensor, DeferredScale | None, Moments]:
    """The moments of each channel of a block (N, C, *others).

    Returns:
        The tensor to go on with in place of x; what :func:`scaled` needs, if it has a kernel of its own; and three
        tensors of the channels: the mean as far as the precision of the block has it, which counts as constant in
        derivatives; the rest of the mean, in double precision; and the sum of the squared deviations from the mean, in
        double precision. All are 0 for channels without elements.
    """
    if x.numel() < LARGE or _is_transformed():
        return x, None, _moments(x)
    deferred = DeferredScale()
    followed, *found = _Moments.apply(x, deferred)
    return followed, deferred, (found[0], found[1], found[2])


def scaled(
    x: torch.Tensor, deferred: DeferredScale | None, pivot: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> torch.Tensor:
    """(x - pivot) * scale + shift, of which the latter are of the channels, and the pivot is a constant.

    Args:
        x, deferred: of :func:`moments`; with ``deferred`` nothing else may be done with x.
    """
    if x.numel() == 0:  # torch's kernel would not look at scale and shift
        return (x - per_channel(pivot, x)) * per_channel(scale, x) + per_channel(shift, x)
    if deferred is not None and x.is_cpu and x.is_contiguous():
        result: torch.Tensor = _Scaled.apply(x, deferred, pivot, scale, shift)
        return result
    return with_plain_gradient(F.batch_norm(x, pivot, torch.ones_like(pivot), scale, shift, eps=0.0))


def with_plain_gradient(y: torch.Tensor) -> torch.Tensor:
    """The result of torch's batch norm or instance norm, to which the gradient comes with plain strides.

    Their backward passes on a CPU read others wrongly: such as those of a transposition behind the norm, where the
    batch or an extent is 1. A block may have such a size where the whole tensor has not.
    """
    return y.flatten().view(y.shape) if y.requires_grad and y.is_contiguous() else y


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
    squares, excess = deviations.square().sum(dims).double(), n * rest.square()
    return pivot, rest, squares - excess.masked_fill(squares.isinf(), 0.0)  # both may be infinite


def per_channel(one: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A value for each channel, in a shape that fits (N, C, *others)."""
    return one.view(-1, *[1] * (x.dim() - 2))


class _Moments(torch.autograd.Function):
    """Later operations use the first result in place of x, so that its gradient arrives here."""

    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, deferred: DeferredScale) -> tuple[torch.Tensor, ...]:
        if x.is_cpu and x.is_contiguous():
            mean, squares = _core.channel_moments(x)
            pivot = mean.to(x.dtype)
            rest = mean - pivot
        else:
            pivot, rest, squares = _moments(x)
        ctx.deferred = deferred
        ctx.save_for_backward(x, pivot, rest)
        ctx.mark_non_differentiable(pivot)
        return x.view_as(x), pivot, rest, squares

    @staticmethod
    def backward(ctx: Context, gradient: torch.Tensor, *of_moments: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, pivot, rest = ctx.saved_tensors
        _, of_rest, of_squares = of_moments
        slope = 2 * of_squares
        constant = of_rest / x[:, :1].numel() - slope * rest
        pivot, constant, slope = (one.to(x.dtype) for one in (pivot, constant, slope))
        scale = ctx.deferred.take()
        if torch.is_grad_enabled() or not (x.is_cpu and x.is_contiguous() and gradient.is_contiguous()):
            pivot, constant, slope = (per_channel(one, x) for one in (pivot, constant, slope))
            return torch.addcmul(gradient + constant, x - pivot, slope), None
        # A gradient that is scaled already is one that nothing else has; another one is the caller's.
        result = gradient if scale is None else torch.empty_like(x)
        scale = torch.ones_like(pivot) if scale is None else scale
        _core.combine_channels(result, gradient, scale, x, pivot, slope, constant)
        return result, None


class _Scaled(torch.autograd.Function):
    """Its backward pass reads the block for the sums of the channels, and leaves the product to that of the moments."""

    @staticmethod
    def forward(
        ctx: Context,
        x: torch.Tensor,
        deferred: DeferredScale,
        pivot: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
    ) -> torch.Tensor:
        ctx.deferred = deferred
        ctx.save_for_backward(x, pivot, scale)
        return F.batch_norm(x, pivot, torch.ones_like(pivot), scale, shift, eps=0.0)

    @staticmethod
    def backward(ctx: Context, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, pivot, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            dims = [d for d in range(x.dim()) if d != 1]
            of_scale = (gradient * (x - per_channel(pivot, x))).sum(dims)
            return gradient * per_channel(scale, x), None, None, of_scale, gradient.sum(dims)
        ctx.deferred.defer(scale)
        gradient = gradient.contiguous()
        _, of_scale, of_shift = torch.ops.aten.native_batch_norm_backward(
            gradient, x, scale, pivot, torch.ones_like(pivot), None, None, False, 0.0, [False, True, True]
        )
        return gradient, None, None, of_scale, of_shift
