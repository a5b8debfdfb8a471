"""Distributed layers. Names, arguments and defaults are those of torch.nn, preceded by the partitions."""

from distdl.nn.conv import (
    DistributedChannelConv1d,
    DistributedChannelConv2d,
    DistributedChannelConv3d,
    DistributedConv1d,
    DistributedConv2d,
    DistributedConv3d,
    DistributedFeatureConv1d,
    DistributedFeatureConv2d,
    DistributedFeatureConv3d,
    DistributedGeneralConv1d,
    DistributedGeneralConv2d,
    DistributedGeneralConv3d,
)
from distdl.nn.conv_transpose import (
    DistributedConvTranspose1d,
    DistributedConvTranspose2d,
    DistributedConvTranspose3d,
)
from distdl.nn.interpolation import DistributedUpsample
from distdl.nn.linear import DistributedLinear
from distdl.nn.loss import DistributedCrossEntropyLoss, DistributedMSELoss
from distdl.nn.module import Module
from distdl.nn.pad import DistributedPad
from distdl.nn.pooling import (
    DistributedAvgPool1d,
    DistributedAvgPool2d,
    DistributedAvgPool3d,
    DistributedMaxPool1d,
    DistributedMaxPool2d,
    DistributedMaxPool3d,
)
from distdl.nn.pooling_adaptive import (
    DistributedAdaptiveAvgPool1d,
    DistributedAdaptiveAvgPool2d,
    DistributedAdaptiveAvgPool3d,
    DistributedAdaptiveMaxPool1d,
    DistributedAdaptiveMaxPool2d,
    DistributedAdaptiveMaxPool3d,
)
from distdl.nn.pooling_lp import DistributedLPPool1d, DistributedLPPool2d, DistributedLPPool3d
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
    "DistributedAdaptiveAvgPool1d",
    "DistributedAdaptiveAvgPool2d",
    "DistributedAdaptiveAvgPool3d",
    "DistributedAdaptiveMaxPool1d",
    "DistributedAdaptiveMaxPool2d",
    "DistributedAdaptiveMaxPool3d",
    "DistributedAvgPool1d",
    "DistributedAvgPool2d",
    "DistributedAvgPool3d",
    "DistributedChannelConv1d",
    "DistributedChannelConv2d",
    "DistributedChannelConv3d",
    "DistributedConv1d",
    "DistributedConv2d",
    "DistributedConv3d",
    "DistributedConvTranspose1d",
    "DistributedConvTranspose2d",
    "DistributedConvTranspose3d",
    "DistributedCrossEntropyLoss",
    "DistributedFeatureConv1d",
    "DistributedFeatureConv2d",
    "DistributedFeatureConv3d",
    "DistributedGeneralConv1d",
    "DistributedGeneralConv2d",
    "DistributedGeneralConv3d",
    "DistributedLPPool1d",
    "DistributedLPPool2d",
    "DistributedLPPool3d",
    "DistributedLinear",
    "DistributedMSELoss",
    "DistributedMaxPool1d",
    "DistributedMaxPool2d",
    "DistributedMaxPool3d",
    "DistributedPad",
    "DistributedTranspose",
    "DistributedUpsample",
    "HaloExchange",
    "Module",
    "ReduceScatter",
    "Repartition",
    "SumReduce",
]
