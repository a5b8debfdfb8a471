"""The logarithm of a sum of exponentials over all blocks along an axis: softmax and cross entropy are made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import torch

from distdl import _core, operators
from distdl.collective.grid import Grid
from distdl.nn.tie import joining

PIECE = 1 << 17  # elements that stay in the cache while several operations pass over them

Context: TypeAlias = torch.autograd.function.FunctionCtx


class LogSumExp:
    """The largest element of all blocks along an axis, and the logarithm of the sum of exponentials relative to it.

    Each worker sends its own largest element and its own sum: one gathering in place of a maximum and a sum. It can be
    differentiated any number of times; each backward pass exchanges one sum.

    Args:
        grid: the workers; tensors have as many dimensions.
        axis: the axis of the grid, and the dimension of the tensors.

    Constructing and calling are collective over the workers.
    """

    def __init__(self, grid: Grid, axis: int) -> None:
        self.axis, self._gather = axis, operators.all_gather(grid, [axis])
        self.sum = operators.all_sum_reduce(grid, [axis])

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest element, which counts as a constant, and the logarithm; both with the dimension, of extent 1.

        Where all elements are -inf, they are 0 and -inf.
        """
        largest = _largest(x.detach(), self.axis)
        return self._over_all(largest, (x - _shift(largest)).exp_().sum(self.axis, keepdim=True))

    def of_constant(self, x: torch.Tensor, powers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The largest element of the block, then what a call gives; without derivatives, in pieces.

        ``powers``, of the shape of x, receives exp(x - the block's largest element).
        """
        largest, sums = (x.new_empty([1 if d == self.axis else n for d, n in enumerate(x.shape)]) for _ in range(2))
        if x.numel() == 0:
            largest.fill_(-torch.inf), sums.zero_()
        for one, power, most, total in _pieces(self.axis, x, powers, largest, sums):
            torch.amax(one, 1, keepdim=True, out=most)
            torch.sum(torch.sub(one, _shift(most), out=power).exp_(), 1, keepdim=True, out=total)
        return largest, *self._over_all(largest, sums)

    def _over_all(self, largest: torch.Tensor, sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Combine each block's largest element and its sum."""
        axis = self.axis
        pairs = self._gather(torch.cat([largest, sums], axis)).unflatten(axis, (-1, 2))
        each, all_sums = pairs.select(axis + 1, 0).detach(), pairs.select(axis + 1, 1)
        shift = _shift(each.amax(axis, keepdim=True))
        return shift, (all_sums * (each - shift).exp()).sum(axis, keepdim=True).log()

    def softmax(self, x: torch.Tensor, agreement: _core.LayerAgreement | None) -> torch.Tensor:
        """exp(x), divided by the sum of all exponentials.

        Args:
            x: this worker's block.
            agreement: of the layer that calls.
        """
        if _has_tangent(agreement):
            return self._log_softmax(x).exp()
        return _Softmax.apply(joining(x, agreement), self)

    def log_softmax(self, x: torch.Tensor, agreement: _core.LayerAgreement | None) -> torch.Tensor:
        """The logarithm of the softmax."""
        if _has_tangent(agreement):
            return self._log_softmax(x)
        return _LogSoftmax.apply(joining(x, agreement), self)

    def _log_softmax(self, x: torch.Tensor) -> torch.Tensor:
        shift, log_sum = self(x)
        return x - shift - log_sum


def _has_tangent(agreement: _core.LayerAgreement | None) -> bool:
    """Whether any rank's tensors have forward derivatives, which autograd functions without a rule for them refuse."""
    return agreement is not None and agreement.has_tangent


def _largest(x: torch.Tensor, axis: int) -> torch.Tensor:
    if x.shape[axis] == 0:
        return x.new_full([1 if d == axis else n for d, n in enumerate(x.shape)], -torch.inf)
    return x.amax(axis, keepdim=True)


def _shift(largest: torch.Tensor) -> torch.Tensor:
    """0 in place of -inf, of which differences are not defined."""
    return largest.masked_fill(largest == -torch.inf, 0.0)


def _pieces(axis: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors without their first dimensions, up to an axis, of which some rows at a time stay in the cache.

    Where one of them is written, it has to be contiguous. None where the first has no elements.
    """
    first = tensors[0]
    count = math.prod(first.shape[:axis])
    size = max(1, PIECE * count // first.numel()) if first.numel() and first.is_cpu else max(1, count)
    rows = (one.reshape(count, *one.shape[axis:]).split(size) for one in tensors)
    return zip(*rows, strict=True) if first.numel() else iter(())


# Autograd alone would keep and pass over more tensors of the size of x. What is computed in place has no graph.


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, over: LogSumExp) -> torch.Tensor:
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        largest, shift, log_sum = over.of_constant(x, result)
        ctx.over = over
        result.mul_((largest - shift - log_sum).exp())
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,), gradient, over = ctx.saved_tensors, gradients[0], ctx.over
        if torch.is_grad_enabled():
            products = gradient * y
            return products - y * over.sum(products.sum(over.axis, keepdim=True)), None
        total = y.new_zeros([1 if d == over.axis else n for d, n in enumerate(y.shape)])
        for slope, one, part in _pieces(over.axis, gradient, y, total):
            torch.sum(slope * one, 1, keepdim=True, out=part)
        total, result = over.sum(total), torch.empty_like(y)
        for slope, one, part, to in _pieces(over.axis, gradient, y, total, result):
            torch.sub(slope, part, out=to).mul_(one)
        return result, None


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, over: LogSumExp) -> torch.Tensor:
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        _, shift, log_sum = over.of_constant(x, result)
        ctx.over = over
        for one, to, large, rest in _pieces(over.axis, x, result, shift, log_sum):
            torch.sub(one, large, out=to).sub_(rest)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,), gradient, over = ctx.saved_tensors, gradients[0], ctx.over
        total = over.sum(gradient.sum(over.axis, keepdim=True))
        if torch.is_grad_enabled():
            return gradient - y.exp() * total, None
        result = torch.empty_like(y)
        for slope, one, part, to in _pieces(over.axis, gradient, y, total, result):
            torch.exp(one, out=to).mul_(-part).add_(slope)
        return result, None
