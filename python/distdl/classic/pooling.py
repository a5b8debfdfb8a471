"""Pooling as programs written for DistDL know it: stride 1 by default, and dilation in the fifth position."""

from __future__ import annotations

from typing import ClassVar

import torch

from distdl.classic.buffer import MPIBufferManager
from distdl.classic.nothing import OldResults
from distdl.nn import pooling
from distdl.nn.base.layer import Layer
from distdl.nn.base.options import per_dimension
from distdl.partitions.construction import PartitionLike

Size = int | tuple[int, ...]


class DistributedPoolBase(OldResults):
    """Our layer with old positions and defaults.

    Args:
        P_x: the partition of input and output.
        kernel_size, stride, padding, dilation: as in torch.nn, but that the stride is 1 by default. Average pooling has
            no dilation but 1.
        buffer_manager: taken, and left alone.
        further: the further options of torch.nn, by name.

    Raises:
        ValueError: on all ranks, if average pooling is to have another dilation than 1.
    """

    takes_dilation: ClassVar[bool] = True
    dims: ClassVar[int]

    def __init__(
        self,
        P_x: PartitionLike,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        buffer_manager: MPIBufferManager | None = None,
        **further: object,
    ) -> None:
        options = {"dilation": dilation, **further} if self.takes_dilation else further
        self._asked = dilation
        super().__init__(P_x, kernel_size, stride, padding, **options)  # type: ignore[call-arg, arg-type]
        self.__dict__["buffer_manager"] = buffer_manager or MPIBufferManager()

    def check_options(self) -> None:
        super().check_options()
        name = type(self).__name__
        if not self.takes_dilation and set(per_dimension(name, self._asked, self.dims, "dilation")) != {1}:
            raise ValueError(f"{name}: dilation={self._asked}; average pooling has none but 1")

    @property
    def pool_layer(self) -> torch.nn.Module:
        """The layer of torch.nn that pools a block with its halos."""
        options = {"dilation": self.dilation} if self.takes_dilation else {}
        (kind,) = self.sequential_classes()
        return kind(self.kernel_size, self.stride, 0, ceil_mode=self.ceil_mode, **options)


class _MaxPool(DistributedPoolBase):
    """Max pooling."""


class _AvgPool(DistributedPoolBase):
    """Average pooling."""

    takes_dilation = False


def _forms(kind: str, base: type[DistributedPoolBase]) -> tuple[type[Layer], type[Layer], type[Layer]]:
    """The classic classes for one, two and three dimensions of space."""

    def member(dims: int) -> type[Layer]:
        name = f"Distributed{kind}{dims}d"
        ours = getattr(pooling, name)
        return type(name, (base, ours), {"__doc__": ours.__doc__, "__module__": __name__})

    return member(1), member(2), member(3)


DistributedMaxPool1d, DistributedMaxPool2d, DistributedMaxPool3d = _forms("MaxPool", _MaxPool)
DistributedAvgPool1d, DistributedAvgPool2d, DistributedAvgPool3d = _forms("AvgPool", _AvgPool)
