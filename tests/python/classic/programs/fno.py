"""A Fourier neural operator, written for DistDL: star imports, and complex weights in blocks of the modes."""

import torch
from mpi4py import MPI

from distdl.backends.mpi.partition import MPIPartition
from distdl.nn import *  # noqa: F403
from distdl.nn.batchnorm import DistributedBatchNorm
from distdl.nn.repartition import Repartition
from distdl.utilities.slicing import *  # noqa: F403
from distdl.utilities.tensor_decomposition import *  # noqa: F403
from distdl.utilities.torch import *  # noqa: F403


def block(P, shape):
    """This worker's slices of a tensor of this shape."""
    structure = TensorStructure()  # noqa: F405
    structure.shape = np.array(shape)  # noqa: F405
    shapes = compute_subtensor_shapes_balanced(structure, P.shape)  # noqa: F405
    starts, stops = compute_subtensor_start_indices(shapes), compute_subtensor_stop_indices(shapes)  # noqa: F405
    return assemble_slices(starts[tuple(P.index)], stops[tuple(P.index)])  # noqa: F405


def weights(channels, modes, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(channels, channels, *modes, generator=generator, dtype=torch.complex128) / channels


class Spectral(torch.nn.Module):
    """Rows are split in space, columns among the modes."""

    def __init__(self, P_x, P_modes, channels, shape, seed):
        super().__init__()
        self.shape, modes = shape, (shape[0], shape[1] // 2 + 1)
        self.to_modes, self.to_space = Repartition(P_x, P_modes), Repartition(P_modes, P_x)
        own = block(P_modes, (channels, channels, *modes))
        self.weight = torch.nn.Parameter(weights(channels, modes, seed)[own].clone())

    def forward(self, x):
        modes = torch.fft.fft(self.to_modes(torch.fft.rfft(x, dim=3)), dim=2)
        modes = torch.einsum("bixy,ioxy->boxy", modes, self.weight)
        return torch.fft.irfft(self.to_space(torch.fft.ifft(modes, dim=2)), self.shape[1], dim=3)


class FNO(torch.nn.Module):
    def __init__(self, P_x, P_modes, channels, shape):
        super().__init__()
        self.lift = DistributedConv2d(P_x, in_channels=1, out_channels=channels, kernel_size=1)  # noqa: F405
        self.spectral = torch.nn.ModuleList(Spectral(P_x, P_modes, channels, shape, seed) for seed in range(2))
        self.norms = torch.nn.ModuleList(DistributedBatchNorm(P_x, channels) for _ in range(2))
        self.project = DistributedConv2d(P_x, in_channels=channels, out_channels=1, kernel_size=1)  # noqa: F405

    def forward(self, x):
        x = self.lift(x)
        for spectral, norm in zip(self.spectral, self.norms, strict=True):
            x = torch.relu(norm(spectral(x)))
        return self.project(x)


class SequentialSpectral(torch.nn.Module):
    def __init__(self, channels, shape, seed):
        super().__init__()
        self.shape = shape
        self.weight = torch.nn.Parameter(weights(channels, (shape[0], shape[1] // 2 + 1), seed))

    def forward(self, x):
        return torch.fft.irfft2(torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x), self.weight), self.shape)


def sequential(channels, shape):
    layers = [torch.nn.Conv2d(1, channels, 1)]
    for seed in range(2):
        layers += [SequentialSpectral(channels, shape, seed), torch.nn.BatchNorm2d(channels), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(channels, 1, 1))


def run(steps=3):
    """(losses, losses of the sequential network)"""
    P_world = MPIPartition(MPI.COMM_WORLD)
    P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1])
    P_modes = P_world.create_cartesian_topology_partition([1, 1, 1, P_world.size])
    channels, shape = 3, (6, 8)
    torch.manual_seed(0)
    net = FNO(P_x, P_modes, channels, shape)
    torch.manual_seed(0)
    twin = sequential(channels, shape)
    for module in (net, twin):  # the weights of the modes are complex, and double already
        for one in module.modules():
            if not list(one.children()) and not any(p.is_complex() for p in one.parameters()):
                one.double()
    criterion = DistributedMSELoss(P_x)  # noqa: F405
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, twin)]
    losses, expected = [], []
    own = block(P_x, (2, 1, *shape))
    for step in range(steps):
        x = torch.rand(2, 1, *shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for one in optimizers:
            one.zero_grad()
        loss = criterion(net(x[own]), x[own].cos())
        loss.backward()
        reference = torch.nn.functional.mse_loss(twin(x), x.cos())
        reference.backward()
        for one in optimizers:
            one.step()
        if P_x.rank == 0:
            losses.append(loss.item())
        expected.append(reference.item())
    return P_world.broadcast_data(losses).tolist(), expected
