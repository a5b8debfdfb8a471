"""The log-sum-exp of all blocks along an axis, for softmax and cross entropy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from distdl import _core, operators
from distdl.modules.graph import require_grad_together
from distdl.partitions.grid import Grid
from distdl.torch_compat.autograd import Context

PIECE = 1 << 17  # elements that stay in the cache during several operations


class LogSumExp:
    """The largest element of all blocks along an axis, and the log-sum-exp relative to it.

    A single gather of each worker's largest element and sum. Differentiable any number of times; each backward pass
    exchanges one sum.

    Args:
        grid: the workers; tensors have as many dimensions.
        axis: the axis of the grid, and the dimension of the tensors.

    Constructing and calling are collective over the workers.
    """

    def __init__(self, grid: Grid, axis: int) -> None:
        self.axis, self._gather = axis, operators.all_gather(grid, [axis])
        self.sum = operators.all_sum_reduce(grid, [axis])

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest element, as a constant, and the logarithm; both with extent 1 along the axis.

        0 and -inf if all elements are -inf.
        """
        largest = _block_max(x.detach(), self.axis)
        return self._over_all(largest, (x - _finite_shift(largest)).exp_().sum(self.axis, keepdim=True))

    def of_constant(self, x: torch.Tensor, powers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The largest element of the block, then the results of a call; without derivatives, in pieces.

        ``powers``, of the shape of x, receives exp(x - the block's largest element).
        """
        largest, sums = (x.new_empty([1 if d == self.axis else n for d, n in enumerate(x.shape)]) for _ in range(2))
        if x.numel() == 0:
            largest.fill_(-torch.inf), sums.zero_()
        for piece, power, most, total in _pieces(self.axis, x, powers, largest, sums):
            torch.amax(piece, 1, keepdim=True, out=most)
            torch.sum(torch.sub(piece, _finite_shift(most), out=power).exp_(), 1, keepdim=True, out=total)
        return largest, *self._over_all(largest, sums)

    def _over_all(self, largest: torch.Tensor, sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        axis = self.axis
        pairs = self._gather(torch.cat([largest, sums], axis)).unflatten(axis, (-1, 2))
        each, all_sums = pairs.select(axis + 1, 0).detach(), pairs.select(axis + 1, 1)
        shift = _finite_shift(each.amax(axis, keepdim=True))
        return shift, (all_sums * (each - shift).exp()).sum(axis, keepdim=True).log()

    def softmax(self, x: torch.Tensor, agreement: _core.LayerAgreement | None) -> torch.Tensor:
        """The softmax of the whole tensor.

        Args:
            agreement: the vote of the calling layer.
        """
        if _has_tangent(agreement):
            return self._log_softmax(x).exp()
        return _Softmax.apply(require_grad_together(x, agreement), self)

    def log_softmax(self, x: torch.Tensor, agreement: _core.LayerAgreement | None) -> torch.Tensor:
        if _has_tangent(agreement):
            return self._log_softmax(x)
        return _LogSoftmax.apply(require_grad_together(x, agreement), self)

    def _log_softmax(self, x: torch.Tensor) -> torch.Tensor:
        shift, log_sum = self(x)
        return x - shift - log_sum


def _has_tangent(agreement: _core.LayerAgreement | None) -> bool:
    """Whether any rank's tensors have forward derivatives, for which the functions below have no rule."""
    return agreement is not None and agreement.has_tangent


def _block_max(x: torch.Tensor, axis: int) -> torch.Tensor:
    if x.shape[axis] == 0:
        return x.new_full([1 if d == axis else n for d, n in enumerate(x.shape)], -torch.inf)
    return x.amax(axis, keepdim=True)


def _finite_shift(largest: torch.Tensor) -> torch.Tensor:
    """The shift, with 0 in place of -inf, since -inf - (-inf) is nan."""
    return largest.masked_fill(largest == -torch.inf, 0.0)


def _pieces(axis: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors with their dimensions before an axis joined, in pieces of rows that stay in the cache.

    Written tensors must be contiguous. No pieces if the first tensor is empty.
    """
    first = tensors[0]
    count = math.prod(first.shape[:axis])
    size = max(1, PIECE * count // first.numel()) if first.numel() and first.is_cpu else max(1, count)
    rows = (x.reshape(count, *x.shape[axis:]).split(size) for x in tensors)
    return zip(*rows, strict=True) if first.numel() else iter(())


# Own backward passes: plain autograd would save and read more tensors of the size of x. In-place results have no graph.


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
        for slope, values, part in _pieces(over.axis, gradient, y, total):
            torch.sum(slope * values, 1, keepdim=True, out=part)
        total, result = over.sum(total), torch.empty_like(y)
        for slope, values, part, to in _pieces(over.axis, gradient, y, total, result):
            torch.sub(slope, part, out=to).mul_(values)
        return result, None


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: torch.Tensor, over: LogSumExp) -> torch.Tensor:
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
        _, shift, log_sum = over.of_constant(x, result)
        ctx.over = over
        for piece, to, large, log in _pieces(over.axis, x, result, shift, log_sum):
            torch.sub(piece, large, out=to).sub_(log)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,), gradient, over = ctx.saved_tensors, gradients[0], ctx.over
        total = over.sum(gradient.sum(over.axis, keepdim=True))
        if torch.is_grad_enabled():
            return gradient - y.exp() * total, None
        result = torch.empty_like(y)
        for slope, values, part, to in _pieces(over.axis, gradient, y, total, result):
            torch.exp(values, out=to).mul_(-part).add_(slope)
        return result, None
