"""The mean squared error over blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from distdl.collective.construction import PartitionLike
from distdl.nn.layer import Described
from distdl.nn.loss.base import Loss
from distdl.nn.precision import wide

__all__ = ["DistributedMSELoss"]


class DistributedMSELoss(Loss):
    """The mean squared error of two partitioned tensors: ``torch.nn.MSELoss`` in blocks.

    Args:
        P_x: the partition of input and target.
        reduction: 'mean', 'sum' or 'none', as in ``torch.nn.MSELoss``.

    Shape:
        Input and target of equal shapes on each worker, zero volume on all other ranks. The result is a scalar on every
        rank; with reduction='none' it is the block of squared errors, of the shape of the input.

    Raises:
        ValueError: on all ranks, if the shapes of an input and its target differ, one of their dtypes is not of
            floating point, or reduction is unknown.

    Constructing and calling are collective over the communicator that P_x comes from. Every rank has to call
    ``backward()``; the loss counts once.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html.
    """

    def __init__(self, P_x: PartitionLike, reduction: str = "mean") -> None:
        super().__init__(locals())

    def why_not(self, input: Described, target: Described) -> str:
        if not (input[1].is_floating_point and target[1].is_floating_point):
            return "their dtypes must be of floating point"
        return "" if input[0] == target[0] else "their shapes must be equal"

    def compute(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of this rank's blocks and of all others."""
        if self.reduction == "none":
            return F.mse_loss(input, target, reduction="none") if self.grid.active else input.clone()
        if not self.grid.active:
            return self.reduce(input, 0.0, input.dtype)
        dtype = torch.promote_types(input.dtype, target.dtype)
        squares = F.mse_loss(wide(input), wide(target), reduction="sum")
        return self.reduce(squares, input.numel(), dtype)
