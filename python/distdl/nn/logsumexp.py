"""The logarithm of a sum of exponentials over all blocks along an axis: softmax and cross entropy are made of it."""

from __future__ import annotations

import torch

from distdl import operators
from distdl.collective.grid import Grid


class LogSumExp:
    """The largest element of all blocks along an axis, and the logarithm of the sum of exponentials relative to it.

    Each worker sends its own largest element and its own sum: one gathering in place of a maximum and a sum. It can be
    differentiated any number of times; each backward pass scatters one sum.

    Args:
        grid: the workers; tensors have as many dimensions.
        axis: the axis of the grid, and the dimension of the tensors.

    Constructing and calling are collective over the workers.
    """

    def __init__(self, grid: Grid, axis: int) -> None:
        self._axis, self._gather = axis, operators.all_gather(grid, [axis])

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest element, which counts as a constant, and the logarithm; both with the dimension, of extent 1.

        Where all elements are -inf, they are 0 and -inf.
        """
        axis = self._axis
        largest = _largest(x.detach(), axis)
        sums = (x - _shift(largest)).exp_().sum(axis, keepdim=True)
        pairs = self._gather(torch.cat([largest, sums], axis)).unflatten(axis, (-1, 2))
        each, sums = pairs.select(axis + 1, 0).detach(), pairs.select(axis + 1, 1)
        shift = _shift(each.amax(axis, keepdim=True))
        return shift, (sums * (each - shift).exp()).sum(axis, keepdim=True).log()


def _largest(x: torch.Tensor, axis: int) -> torch.Tensor:
    if x.shape[axis] == 0:
        return x.new_full([1 if d == axis else n for d, n in enumerate(x.shape)], -torch.inf)
    return x.amax(axis, keepdim=True)


def _shift(largest: torch.Tensor) -> torch.Tensor:
    """0 in place of -inf, of which differences are not defined."""
    return largest.masked_fill(largest == -torch.inf, 0.0)
