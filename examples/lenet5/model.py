"""LeNet-5 twice: sequential, and distributed over 1, 2 or 4 ranks. The parameters have the same names."""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

import distdl
from distdl.nn import (
    DistributedConv2d,
    DistributedLinear,
    DistributedMaxPool2d,
    Repartition,
)


@dataclass(frozen=True)
class Grids:
    """How many workers share each dimension, for one number of ranks."""

    space: tuple[int, int]  # of the images, in height and width
    weights: tuple[tuple[int, int], ...]  # of each linear layer's weight, in out_features and in_features


# A linear layer takes its input from as many workers as its weight has columns, and leaves its output on as many as the
# weight has rows. So each layer has as many columns as the layer before it has rows.
GRIDS = {
    1: Grids(space=(1, 1), weights=((1, 1), (1, 1), (1, 1))),
    2: Grids(space=(2, 1), weights=((1, 2), (2, 1), (1, 2))),
    4: Grids(space=(2, 2), weights=((2, 2), (2, 2), (2, 2))),
}


def sequential_lenet5(dtype: torch.dtype) -> nn.Module:
    """LeNet-5 in plain PyTorch: images (N, 1, 28, 28) to logits (N, 10)."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 6, 5, padding=2, dtype=dtype),
            relu1=nn.ReLU(inplace=True),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5, dtype=dtype),
            relu2=nn.ReLU(inplace=True),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            linear1=nn.Linear(400, 120, dtype=dtype),
            relu3=nn.ReLU(inplace=True),
            linear2=nn.Linear(120, 84, dtype=dtype),
            relu4=nn.ReLU(inplace=True),
            linear3=nn.Linear(84, 10, dtype=dtype),
        )
    )


def distributed_lenet5(P_world: distdl.Partition, dtype: torch.dtype) -> nn.Module:
    """The same network over the ranks of P_world. Images and logits are on rank 0; other ranks have zero volume."""
    grids = GRIDS[P_world.size]
    partition = P_world.create_cartesian_topology_partition  # over the first ranks, as many as the shape needs
    P_image = partition([1, 1, 1, 1])
    P_space = partition([1, 1, *grids.space])
    P_channels = partition([1, P_world.size, 1, 1])
    P_features = partition([1, P_world.size])
    P_logits = partition([1, 1])

    def linear(layer: int, in_features: int, out_features: int) -> DistributedLinear:
        rows, columns = grids.weights[layer]
        P_x, P_y, P_W = partition([1, columns]), partition([1, rows]), partition([rows, columns])
        return DistributedLinear(P_x, P_y, P_W, in_features, out_features, dtype=dtype)

    return nn.Sequential(
        OrderedDict(
            scatter=Repartition(P_image, P_space),
            conv1=DistributedConv2d(P_space, 1, 6, 5, padding=2, dtype=dtype),
            relu1=nn.ReLU(inplace=True),
            pool1=DistributedMaxPool2d(P_space, 2),
            conv2=DistributedConv2d(P_space, 6, 16, 5, dtype=dtype),
            relu2=nn.ReLU(inplace=True),
            pool2=DistributedMaxPool2d(P_space, 2),
            # Flattening is local, and keeps the order of the features only if each worker holds whole channels: a block
            # of 16/p channels of 5 x 5 is then a block of 400/p features, and the blocks follow one another.
            to_channels=Repartition(P_space, P_channels),
            flatten=nn.Flatten(),
            to_linear=Repartition(P_features, partition([1, grids.weights[0][1]])),
            linear1=linear(0, 400, 120),
            relu3=nn.ReLU(inplace=True),
            linear2=linear(1, 120, 84),
            relu4=nn.ReLU(inplace=True),
            linear3=linear(2, 84, 10),
            gather=Repartition(partition([1, grids.weights[-1][0]]), P_logits),
        )
    )
