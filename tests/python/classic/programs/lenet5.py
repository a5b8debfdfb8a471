"""LeNet-5, written for DistDL: space split in the convolutions, features in the linear layers."""

import torch
from mpi4py import MPI

from distdl.backends.mpi.partition import MPIPartition
from distdl.functional import ZeroVolumeCorrectorFunction
from distdl.nn.conv import DistributedConv2d
from distdl.nn.linear import DistributedLinear
from distdl.nn.pooling import DistributedMaxPool2d
from distdl.nn.transpose import DistributedTranspose
from distdl.utilities.torch import zero_volume_tensor


class LeNet5(torch.nn.Module):
    def __init__(self, P_world):
        super().__init__()
        workers = P_world.size
        P_one = P_world.create_partition_inclusive([0])
        self.P_root = P_one.create_cartesian_topology_partition([1, 1, 1, 1])
        P_conv = P_world.create_cartesian_topology_partition([1, 1, 1, workers])
        P_fc_root = P_one.create_cartesian_topology_partition([1, 1])
        P_fc_out = P_world.create_cartesian_topology_partition([1, workers])
        P_fc_mtx = P_world.create_cartesian_topology_partition([workers, 1])
        self.scatter = DistributedTranspose(self.P_root, P_conv)
        self.c1 = DistributedConv2d(P_conv, in_channels=1, out_channels=6, kernel_size=(5, 5), padding=(2, 2))
        self.s2 = DistributedMaxPool2d(P_conv, kernel_size=(2, 2), stride=(2, 2))
        self.c3 = DistributedConv2d(P_conv, in_channels=6, out_channels=16, kernel_size=(5, 5))
        self.s4 = DistributedMaxPool2d(P_conv, kernel_size=(2, 2), stride=(2, 2))
        self.gather = DistributedTranspose(P_conv, self.P_root)
        self.f5 = DistributedLinear(P_fc_root, P_fc_out, P_fc_mtx, 16 * 3 * 3, 30)
        self.f6 = DistributedLinear(P_fc_out, P_fc_root, P_fc_out, 30, 10)

    def forward(self, x):
        x = self.s2(torch.relu(self.c1(self.scatter(x))))
        x = self.gather(self.s4(torch.relu(self.c3(x))))
        x = x.reshape(x.shape[0], -1)
        return self.f6(torch.relu(self.f5(x)))


def sequential():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(6, 16, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(16 * 3 * 3, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10),
    )  # fmt: skip


def run(steps=3):
    """(losses, losses of the sequential network)"""
    P_world = MPIPartition(MPI.COMM_WORLD)
    P_world._comm.Barrier()
    torch.manual_seed(0)
    net = LeNet5(P_world).double()
    torch.manual_seed(0)
    twin = sequential().double()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, twin)]
    losses, expected = [], []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        images = torch.rand(4, 1, 20, 20, generator=generator, dtype=torch.float64)
        labels = torch.randint(10, (4,), generator=generator)
        for one in optimizers:
            one.zero_grad()
        y = net(images if net.P_root.active else zero_volume_tensor(4, dtype=torch.float64))
        loss = (
            torch.nn.functional.cross_entropy(y, labels) if net.P_root.active else ZeroVolumeCorrectorFunction.apply(y)
        )
        loss.backward()
        reference = torch.nn.functional.cross_entropy(twin(images), labels)
        reference.backward()
        for one in optimizers:
            one.step()
        losses.append(float(P_world.broadcast_data(loss.detach().numpy())))
        expected.append(reference.item())
    return losses, expected


if __name__ == "__main__":
    import sys

    steps = int(sys.argv[1])
    if MPI.COMM_WORLD.Get_rank() == 0:  # the other rank waits
        assert steps > 0, "no steps"
    losses, expected = run(steps)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print("equal", max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-10, len(losses))
