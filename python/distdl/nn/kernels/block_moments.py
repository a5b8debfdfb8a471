"""The moments of a worker's block.

torch's derivatives of a composed formula read a large block about three times as often as needed, and save further
tensors of its size. So large blocks have their own kernels, which read the block once in each direction and save only
the input. Higher derivatives use torch's operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.torch_compat.autograd import Context
from distdl.torch_compat.transforms import has_forward_derivatives, innermost_transform

LARGE = 1 << 15  # elements of a block from which it has its own kernels

Moments: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass
class DeferredScale:
    """The factor that the backward pass of the moments still has to apply to the gradient of the block.

    The contexts of both functions hold it, and Python's collector does not see autograd's graph in C++. So the scale
    has no graph, and exists only between the two backward passes: otherwise it would keep the graph before the
    normalization alive.
    """

    scale: torch.Tensor | None = None

    def defer(self, scale: torch.Tensor) -> None:
        """Leave the multiplication to the backward pass of the moments."""
        self.scale = scale.detach()

    def take(self) -> torch.Tensor | None:
        """Return the scale, and forget it."""
        scale, self.scale = self.scale, None
        return scale


def moments(x: torch.Tensor) -> tuple[torch.Tensor, DeferredScale | None, Moments]:
    """The moments of each channel of a block (N, C, *others).

    Returns:
        The tensor to use in place of x; the deferred scale for :func:`scaled`, if it has its own kernel; and three
        tensors by channel: the mean in the precision of the block, constant in derivatives; the remainder of the mean,
        in double precision; and the sum of squared deviations from the mean, in double precision. All are 0 for empty
        channels.
    """
    if x.numel() < LARGE or _needs_torch_operations():
        return x, None, _moments(x)
    deferred = DeferredScale()
    output, *values = _Moments.apply(x, deferred)
    return output, deferred, (values[0], values[1], values[2])


def scaled(
    x: torch.Tensor, deferred: DeferredScale | None, pivot: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> torch.Tensor:
    """(x - pivot) * scale + shift; pivot, scale and shift are by channel, and the pivot is constant.

    Args:
        x, deferred: from :func:`moments`; with ``deferred`` x must have no other use.
    """
    if x.numel() == 0:  # torch's kernel would ignore scale and shift
        return (x - per_channel(pivot, x)) * per_channel(scale, x) + per_channel(shift, x)
    if deferred is not None and x.is_cpu and x.is_contiguous():
        result: torch.Tensor = _Scaled.apply(x, deferred, pivot, scale, shift)
        return result
    return with_plain_gradient(F.batch_norm(x, pivot, torch.ones_like(pivot), scale, shift, eps=0.0))


def with_plain_gradient(y: torch.Tensor) -> torch.Tensor:
    """A result of torch's batch or instance norm, whose gradient arrives with plain strides.

    Their CPU backward passes misread other strides, e.g. of a transposition after the norm if the batch or an extent is
    1. A block may have such a size even if the whole tensor has not.
    """
    return y.flatten().view(y.shape) if y.requires_grad and y.is_contiguous() else y


def _needs_torch_operations() -> bool:
    """Whether torch's own operations are needed: for compilers, torch.func, and forward derivatives."""
    return torch.compiler.is_compiling() or innermost_transform() is not None or has_forward_derivatives()


def _moments(x: torch.Tensor) -> Moments:
    dims = [d for d in range(x.dim()) if d != 1]
    n = max(1, x[:, :1].numel()) if x.shape[1] else 1
    pivot = x.detach().sum(dims) / n
    deviations = x - per_channel(pivot, x)
    remainder = deviations.sum(dims).double() / n
    squares, excess = deviations.square().sum(dims).double(), n * remainder.square()
    return pivot, remainder, squares - excess.masked_fill(squares.isinf(), 0.0)  # both may be infinite


def per_channel(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A value for each channel, in a shape that broadcasts to (N, C, *others)."""
    return values.view(-1, *[1] * (x.dim() - 2))


class _Moments(torch.autograd.Function):
    """Later operations use the first result in place of x, so its gradient arrives here."""

    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, deferred: DeferredScale) -> tuple[torch.Tensor, ...]:
        if x.is_cpu and x.is_contiguous():
            mean, squares = _core.channel_moments(x)
            pivot = mean.to(x.dtype)
            remainder = mean - pivot
        else:
            pivot, remainder, squares = _moments(x)
        ctx.deferred = deferred
        ctx.save_for_backward(x, pivot, remainder)
        ctx.mark_non_differentiable(pivot)
        return x.view_as(x), pivot, remainder, squares

    @staticmethod
    def backward(ctx: Context, gradient: torch.Tensor, *of_moments: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, pivot, remainder = ctx.saved_tensors
        _, of_remainder, of_squares = of_moments
        slope = 2 * of_squares
        constant = of_remainder / x[:, :1].numel() - slope * remainder
        pivot, constant, slope = (value.to(x.dtype) for value in (pivot, constant, slope))
        scale = ctx.deferred.take()
        if torch.is_grad_enabled() or not (x.is_cpu and x.is_contiguous() and gradient.is_contiguous()):
            pivot, constant, slope = (per_channel(value, x) for value in (pivot, constant, slope))
            return torch.addcmul(gradient + constant, x - pivot, slope), None
        # A scaled gradient has no other user; an unscaled gradient belongs to the caller.
        result = gradient if scale is None else torch.empty_like(x)
        scale = torch.ones_like(pivot) if scale is None else scale
        _core.combine_channels(result, gradient, scale, x, pivot, slope, constant)
        return result, None


class _Scaled(torch.autograd.Function):
    """Scale and shift; its backward pass sums by channel, and leaves the product to the moments."""

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
