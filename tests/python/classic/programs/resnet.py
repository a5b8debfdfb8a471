"""A residual network, written for DistDL: batch norms, initialisation by isinstance, and a head behind a flattening."""

import torch
from mpi4py import MPI

from distdl.backends.mpi.partition import MPIPartition
from distdl.nn.batchnorm import DistributedBatchNorm
from distdl.nn.conv_feature import DistributedFeatureConv2d
from distdl.nn.loss import DistributedMSELoss
from distdl.nn.module import Module
from distdl.nn.pooling import DistributedAvgPool2d
from distdl.nn.repartition import Repartition
from distdl.utilities.slicing import *  # noqa: F403
from distdl.utilities.torch import TensorStructure, zero_volume_tensor


class Flatten(Module):
    """Gathers a tensor on one worker, and flattens it there. It keeps what it saw in its set-up."""

    def __init__(self, P_x, P_root):
        super().__init__()
        self.P_root = P_root
        self.gather = Repartition(P_x, P_root)

    def _distdl_module_setup(self, input):
        self._input_tensor_structure = TensorStructure(input[0])

    def _distdl_module_teardown(self, input):
        self._input_tensor_structure = TensorStructure()

    def _distdl_input_changed(self, input):
        return self._input_tensor_structure != TensorStructure(input[0])

    def forward(self, input):
        x = self.gather(input)
        return x.reshape(x.shape[0], -1)


class Block(torch.nn.Module):
    def __init__(self, P_x, channels):
        super().__init__()
        self.conv = DistributedFeatureConv2d(P_x, channels, channels, 3, 1, 1, "zeros", 1, 1, False)
        self.norm = DistributedBatchNorm(P_x, num_features=channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


class ResNet(torch.nn.Module):
    def __init__(self, P_x, P_root):
        super().__init__()
        self.stem = DistributedFeatureConv2d(P_x, 2, 4, 3, padding=1)
        self.blocks = torch.nn.Sequential(Block(P_x, 4), Block(P_x, 4))
        self.pool = DistributedAvgPool2d(P_x, kernel_size=2, stride=2)
        self.flatten = Flatten(P_x, P_root)

    def forward(self, x):
        return self.flatten(self.pool(self.blocks(self.stem(x))))


class SequentialBlock(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm = torch.nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


def sequential():
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1), SequentialBlock(4), SequentialBlock(4), torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
    )  # fmt: skip


def initialize(net, conv, norm):
    """Convolutions by one rule, norms by another."""
    found = 0
    for module in net.modules():
        if isinstance(module, conv) and module.weight.numel() > 0:
            torch.manual_seed(found)
            torch.nn.init.kaiming_normal_(module.weight, mode="fan_out")
        found += isinstance(module, conv)
        if isinstance(module, norm):
            for name in ("gamma", "weight"):
                if hasattr(module, name):
                    torch.nn.init.constant_(getattr(module, name), 0.5)
                    break
    assert found == 3


def run(steps=3):
    """(losses, losses of the sequential network)"""
    P_world = MPIPartition(MPI.COMM_WORLD)
    P_x = P_world.create_cartesian_topology_partition([1, 1, 1, P_world.size])
    P_root = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1, 1, 1])
    P_loss = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1])
    torch.manual_seed(0)
    net = ResNet(P_x, P_root).double()
    torch.manual_seed(0)
    twin = sequential().double()
    initialize(net, DistributedFeatureConv2d, DistributedBatchNorm)
    initialize(twin, torch.nn.Conv2d, torch.nn.BatchNorm2d)
    criterion = DistributedMSELoss(P_loss)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, twin)]
    losses, expected = [], []
    shape = np.array([3, 2, 6, 10])  # noqa: F405
    start = compute_start_index(P_x.shape, P_x.index, shape)  # noqa: F405
    own = assemble_slices(start, start + compute_subshape(P_x.shape, P_x.index, shape))  # noqa: F405
    for step in range(steps):
        x = torch.rand(*shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        target = torch.ones(3, 4 * 3 * 5, dtype=torch.float64)
        for one in optimizers:
            one.zero_grad()
        loss = criterion(net(x[own]), target if P_root.active else zero_volume_tensor(3, dtype=torch.float64))
        loss.backward()
        reference = torch.nn.functional.mse_loss(twin(x), target)
        reference.backward()
        for one in optimizers:
            one.step()
        losses.append(float(P_world.allreduce_data(loss.detach().numpy())))  # 0 on all ranks but one
        expected.append(reference.item())
    net.eval()
    twin.eval()
    y = P_world.broadcast_data(net(x[own]).detach().numpy())
    losses.append(float(y.sum()))
    expected.append(twin(x).sum().item())
    return losses, expected
