"""A VGG, written for DistDL: linear layers with a weight in blocks, and initialisation by isinstance."""

import numpy as np
import torch
from mpi4py import MPI

from distdl.backends.mpi.partition import MPIPartition
from distdl.nn import (
    DistributedConv2d,
    DistributedFeatureConv2d,
    DistributedLinear,
    DistributedMaxPool2d,
    Repartition,
)
from distdl.utilities.slicing import assemble_slices, compute_start_index, compute_stop_index
from distdl.utilities.torch import zero_volume_tensor

FEATURES = 6 * 2 * 3


class VGG(torch.nn.Module):
    def __init__(self, P_world):
        super().__init__()
        workers = P_world.size
        P_one = P_world.create_partition_inclusive(np.arange(1))
        self.P_root = P_one.create_cartesian_topology_partition([1, 1, 1, 1])
        P_x = P_world.create_cartesian_topology_partition([1, 1, 1, workers])
        P_fc = P_one.create_cartesian_topology_partition([1, 1])
        P_row = P_world.create_cartesian_topology_partition([1, workers])
        P_column = P_world.create_cartesian_topology_partition([workers, 1])
        self.features = torch.nn.Sequential(
            Repartition(self.P_root, P_x),
            DistributedConv2d(P_x, in_channels=2, out_channels=4, kernel_size=3, padding=1, padding_mode="zeros"),
            torch.nn.ReLU(inplace=True),
            DistributedMaxPool2d(P_x, 2, 2),
            DistributedConv2d(P_x, in_channels=4, out_channels=6, kernel_size=3, padding=1, bias=True),
            torch.nn.ReLU(inplace=True),
            DistributedMaxPool2d(P_x, 2, 2),
            Repartition(P_x, self.P_root),
        )
        self.fc1 = DistributedLinear(P_fc, P_row, P_w=P_column, in_features=FEATURES, out_features=14)
        self.fc2 = DistributedLinear(P_row, P_fc, P_w=P_row, in_features=14, out_features=5)
        self.initialize()

    def initialize(self):
        for module in self.modules():
            if isinstance(module, DistributedFeatureConv2d) and module.weight.numel() > 0:
                torch.nn.init.constant_(module.bias, 0.25)
            elif isinstance(module, DistributedLinear):
                P_w, shape = module.P_w, (module.out_features, module.in_features)
                own = assemble_slices(
                    compute_start_index(P_w.shape, P_w.index, shape), compute_stop_index(P_w.shape, P_w.index, shape)
                )
                module.sublinear.weight = torch.nn.Parameter(weights(shape)[own].clone())
                if P_w.index[1] == 0:
                    torch.nn.init.zeros_(module.sublinear.bias)

    def forward(self, x):
        x = self.features(x)
        return self.fc2(torch.relu(self.fc1(x.view(x.shape[0], -1))))


def weights(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])) / shape[1] ** 0.5


def sequential():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(4, 6, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(FEATURES, 14), torch.nn.ReLU(), torch.nn.Linear(14, 5),
    )  # fmt: skip
    for module in net:
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.constant_(module.bias, 0.25)
        elif isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(weights((module.out_features, module.in_features)))
            torch.nn.init.zeros_(module.bias)
    return net


def run(steps=3):
    """(losses, losses of the sequential network)"""
    P_world = MPIPartition(MPI.COMM_WORLD)
    torch.manual_seed(0)
    net = VGG(P_world).double()
    torch.manual_seed(0)
    twin = sequential().double()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (net, twin)]
    losses, expected = [], []
    for step in range(steps):
        x = torch.rand(3, 2, 8, 12, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for one in optimizers:
            one.zero_grad()
        y = net(x if net.P_root.active else zero_volume_tensor(3, dtype=torch.float64))
        loss = y.square().sum()
        loss.backward()
        reference = twin(x).square().sum()
        reference.backward()
        for one in optimizers:
            one.step()
        losses.append(float(P_world.broadcast_data(loss.detach().numpy())))
        expected.append(reference.item())
    return losses, expected
