"""The linear layer over a partitioned weight, as programs written for DistDL know it."""

from __future__ import annotations

import torch

from distdl.classic.arguments import old_arguments
from distdl.classic.keys import OldLayer
from distdl.nn import linear
from distdl.nn.primitives import Broadcast, SumReduce
from distdl.partitions.construction import PartitionLike
from distdl.partitions.partition import Partition


@old_arguments("P_x P_y P_w in_features out_features bias")
class DistributedLinear(OldLayer, linear.DistributedLinear):
    """Our layer with its parameters in ``sublinear``.

    Args:
        P_x, P_y, P_w: the partitions of input and output, and the workers that compute: P_W of our layer.
        in_features, out_features, bias: as in ``torch.nn.Linear``.

    Attributes:
        sublinear: a ``torch.nn.Linear`` with this worker's block of weight and bias.
        x_broadcast, y_sum_reduce: the operators from P_x to P_w and from there to P_y.
    """

    old_names = {"weight": "sublinear.weight", "bias": "sublinear.bias"}
    P_w: Partition

    def construct(self, P_x: PartitionLike, P_y: PartitionLike, P_w: PartitionLike, **options: object) -> None:
        super().construct(P_x=P_x, P_y=P_y, P_W=P_w, **options)
        self.__dict__["P_w"] = self.P_W
        self.x_broadcast = Broadcast(P_x, P_w)
        self.y_sum_reduce = SumReduce(P_w, P_y, transpose_dest=True)

    def layer_within(self, name: str) -> torch.nn.Module:
        return torch.nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
