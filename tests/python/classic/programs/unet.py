"""A U-Net, written for DistDL: upsampling, and a binary cross entropy of logits."""

import torch
from mpi4py import MPI

import distdl.nn as dnn
from distdl.backend import backend
from distdl.utilities.slicing import assemble_slices, compute_start_index, compute_stop_index


class Twice(torch.nn.Module):
    def __init__(self, P_x, before, channels):
        super().__init__()
        self.conv = dnn.DistributedConv2d(P_x, in_channels=before, out_channels=channels, kernel_size=3, padding=1)
        self.norm = dnn.DistributedBatchNorm(P_x, num_features=channels, momentum=0.2)

    def forward(self, x):
        return torch.nn.functional.relu(self.norm(self.conv(x)), inplace=True)


class UNet(torch.nn.Module):
    def __init__(self, P_x):
        super().__init__()
        self.down = Twice(P_x, 1, 3)
        self.pool = dnn.DistributedMaxPool2d(P_x, kernel_size=2, stride=2)
        self.bottom = Twice(P_x, 3, 4)
        self.raise_ = dnn.DistributedUpsample(P_x, scale_factor=2, mode="linear", align_corners=False)
        self.up = Twice(P_x, 7, 3)
        self.head = dnn.DistributedConv2d(P_x, 3, 1, 1)

    def forward(self, x):
        kept = self.down(x)
        x = self.raise_(self.bottom(self.pool(kept)))
        return self.head(self.up(torch.cat([kept, x], dim=1)))


class SequentialTwice(torch.nn.Sequential):
    def __init__(self, before, channels):
        super().__init__(
            torch.nn.Conv2d(before, channels, 3, padding=1),
            torch.nn.BatchNorm2d(channels, momentum=0.2),
            torch.nn.ReLU(),
        )


class SequentialUNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.pool, self.bottom = SequentialTwice(1, 3), torch.nn.MaxPool2d(2), SequentialTwice(3, 4)
        self.raise_ = torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.up, self.head = SequentialTwice(7, 3), torch.nn.Conv2d(3, 1, 1)

    def forward(self, x):
        kept = self.down(x)
        return self.head(self.up(torch.cat([kept, self.raise_(self.bottom(self.pool(kept)))], 1)))


def run(steps=3):
    """(losses, losses of the sequential network)"""
    P_world = backend.Partition(MPI.COMM_WORLD)
    P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1])
    torch.manual_seed(0)
    net = UNet(P_x).double()
    torch.manual_seed(0)
    twin = SequentialUNet().double()
    criterion, reference_criterion = dnn.DistributedBCEWithLogitsLoss(P_x), torch.nn.BCEWithLogitsLoss()
    optimizers = [torch.optim.Adam(one.parameters(), lr=0.01) for one in (net, twin)]
    shape = (2, 1, 4 * P_world.size, 6)
    own = assemble_slices(
        compute_start_index(P_x.shape, P_x.index, shape), compute_stop_index(P_x.shape, P_x.index, shape)
    )
    losses, expected = [], []
    for step in range(steps):
        x = torch.rand(*shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        mask = (x > 0.5).double()
        for one in optimizers:
            one.zero_grad()
        loss = criterion(net(x[own]), mask[own])
        loss.backward()
        reference = reference_criterion(twin(x), mask)
        reference.backward()
        for one in optimizers:
            one.step()
        losses.append(float(P_world.allreduce_data(loss.detach().numpy())))
        expected.append(reference.item())
    return losses, expected
