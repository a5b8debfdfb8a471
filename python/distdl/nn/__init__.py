"""Distributed layers. Names, arguments and defaults are those of torch.nn, preceded by the partitions."""

from distdl.nn.conv import DistributedConv1d, DistributedConv2d, DistributedConv3d
from distdl.nn.linear import DistributedLinear
from distdl.nn.loss import DistributedCrossEntropyLoss, DistributedMSELoss
from distdl.nn.module import Module
from distdl.nn.pooling import (
    DistributedAvgPool1d,
    DistributedAvgPool2d,
    DistributedAvgPool3d,
    DistributedMaxPool1d,
    DistributedMaxPool2d,
    DistributedMaxPool3d,
)
from distdl.nn.primitives import (
    AllGather,
    AllSumReduce,
    Broadcast,
    DistributedTranspose,
    HaloExchange,
    ReduceScatter,
    Repartition,
    SumReduce,
)

__all__ = [
    "AllGather",
    "AllSumReduce",
    "Broadcast",
    "DistributedAvgPool1d",
    "DistributedAvgPool2d",
    "DistributedAvgPool3d",
    "DistributedConv1d",
    "DistributedConv2d",
    "DistributedConv3d",
    "DistributedCrossEntropyLoss",
    "DistributedLinear",
    "DistributedMSELoss",
    "DistributedMaxPool1d",
    "DistributedMaxPool2d",
    "DistributedMaxPool3d",
    "DistributedTranspose",
    "HaloExchange",
    "Module",
    "ReduceScatter",
    "Repartition",
    "SumReduce",
]
