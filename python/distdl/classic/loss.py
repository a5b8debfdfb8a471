"""Losses as programs written for DistDL know them: the number on the first worker, and 0 on all other ranks."""

from __future__ import annotations

from typing import ClassVar

import torch

from distdl.classic.nothing import OldResults
from distdl.nn import loss
from distdl.parameters.transport import zero_of
from distdl.partitions.construction import PartitionLike
from distdl.partitions.partition import Partition


class DistributedLossBase(OldResults):
    """Our loss, of which only the first worker of P_x has the value: programs print it there, or sum it over ranks.

    All ranks call ``backward()`` on what they have.

    Args:
        P_x: the partition of the tensors.
        reduction: 'mean', 'sum' or 'none', and 'batchmean' of DistributedKLDivLoss.
        options: the further options of torch.nn, by name.
    """

    _valid_reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")
    reduction: str

    def __init__(self, P_x: PartitionLike, reduction: str = "mean", **options: object) -> None:
        super().__init__(P_x, reduction=reduction, **options)  # type: ignore[call-arg, arg-type]

    @property
    def P_0(self) -> Partition:
        """The first worker of P_x, with as many dimensions."""
        grid = self.grid
        first = grid.related(grid.ranks[:1], (1,) * grid.dim) if grid.known else grid
        return type(self.P_x).of_grid(first, self.P_x)

    def forward(self, *args: object, **kwargs: object) -> object:
        """The loss on the first worker, 0 on all other ranks; each worker's own block with 'none'."""
        result = super().forward(*args, **kwargs)
        if self.reduction == "none" or self.grid.rank == 0 or not isinstance(result, torch.Tensor):
            return result
        return result.new_zeros(()) + zero_of(result)  # connected with the backward pass


def _form(name: str) -> type[DistributedLossBase]:
    ours = getattr(loss, name)
    fields = {"_valid_reductions": ours.reductions, "__module__": __name__}
    made: type[DistributedLossBase] = type(name, (DistributedLossBase, ours), fields)
    return made


DistributedL1Loss = _form("DistributedL1Loss")
DistributedMSELoss = _form("DistributedMSELoss")
DistributedPoissonNLLLoss = _form("DistributedPoissonNLLLoss")
DistributedBCELoss = _form("DistributedBCELoss")
DistributedBCEWithLogitsLoss = _form("DistributedBCEWithLogitsLoss")
DistributedKLDivLoss = _form("DistributedKLDivLoss")
