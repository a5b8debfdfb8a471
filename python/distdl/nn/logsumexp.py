"""The logarithm of a sum of exponentials over all blocks along an axis: softmax and cross entropy are made of it."""

from __future__ import annotations

from typing import TypeAlias

import torch

from distdl import _core, operators
from distdl.collective.grid import Grid
from distdl.nn.tie import joining

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
        return self.with_powers(x)[2:]

    def with_powers(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Before what a call gives: exp(x - the block's largest element), and this element."""
        axis = self.axis
        largest = _largest(x.detach(), axis)
        powers = (x - _shift(largest)).exp_()
        pairs = self._gather(torch.cat([largest, powers.sum(axis, keepdim=True)], axis)).unflatten(axis, (-1, 2))
        each, sums = pairs.select(axis + 1, 0).detach(), pairs.select(axis + 1, 1)
        shift = _shift(each.amax(axis, keepdim=True))
        return powers, largest, shift, (sums * (each - shift).exp()).sum(axis, keepdim=True).log()

    def softmax(self, x: torch.Tensor, agreement: _core.LayerAgreement | None) -> torch.Tensor:
        """exp(x), divided by the sum of all exponentials.

        Args:
            x: this worker's block.
            agreement: of the layer that calls.
        """
        if has_tangent(agreement):
            return self._log_softmax(x).exp()
        return _Softmax.apply(joining(x, agreement), self)

    def log_softmax(self, x: torch.Tensor, agreement: _core.LayerAgreement | None) -> torch.Tensor:
        """The logarithm of the softmax."""
        if has_tangent(agreement):
            return self._log_softmax(x)
        return _LogSoftmax.apply(joining(x, agreement), self)

    def _log_softmax(self, x: torch.Tensor) -> torch.Tensor:
        shift, log_sum = self(x)
        return x - shift - log_sum


def has_tangent(agreement: _core.LayerAgreement | None) -> bool:
    """Whether any rank's tensors have forward derivatives, which autograd functions without a rule for them refuse."""
    return agreement is not None and agreement.has_tangent


def _largest(x: torch.Tensor, axis: int) -> torch.Tensor:
    if x.shape[axis] == 0:
        return x.new_full([1 if d == axis else n for d, n in enumerate(x.shape)], -torch.inf)
    return x.amax(axis, keepdim=True)


def _shift(largest: torch.Tensor) -> torch.Tensor:
    """0 in place of -inf, of which differences are not defined."""
    return largest.masked_fill(largest == -torch.inf, 0.0)


# Autograd alone would keep and pass over more tensors of the size of x. What is computed in place has no graph.


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, over: LogSumExp) -> torch.Tensor:
        powers, largest, shift, log_sum = over.with_powers(x)
        ctx.over, result = over, powers.mul_((largest - shift - log_sum).exp())
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,), gradient, over = ctx.saved_tensors, gradients[0], ctx.over
        products = gradient * y
        total = over.sum(products.sum(over.axis, keepdim=True))
        if torch.is_grad_enabled():
            return products - y * total, None
        return torch.sub(gradient, total, out=products).mul_(y), None


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, over: LogSumExp) -> torch.Tensor:
        powers, _, shift, log_sum = over.with_powers(x)
        ctx.over, result = over, torch.sub(x, shift, out=powers).sub_(log_sum)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,), gradient, over = ctx.saved_tensors, gradients[0], ctx.over
        total = over.sum(gradient.sum(over.axis, keepdim=True))
        if torch.is_grad_enabled():
            return gradient - y.exp() * total, None
        return y.exp().mul_(-total).add_(gradient), None
