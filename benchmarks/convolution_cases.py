"""Which convolutions are timed: a distributed layer on two ranks, and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from mpi4py import MPI
from torch import Tensor

import distdl
from distdl import Partition
from distdl.nn.kernels.convolution import conv3d

CHANNELS = 32


class LocalConv3d(torch.nn.Conv3d):
    """By the kernel that workers take."""

    def forward(self, input: Tensor) -> Tensor:
        """The output."""
        assert not isinstance(self.padding, str)
        return conv3d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


@dataclass(frozen=True)
class Convolution:
    """A layer with as much padding as keeps the size, and how many elements a side its inputs have by default."""

    dims: int
    kernel: int
    sides: tuple[int, ...]


CONVOLUTIONS = {
    "Conv2d-3x3": Convolution(2, 3, (64, 256, 512, 1024)),
    "Conv2d-7x7": Convolution(2, 7, (64, 256, 512)),
    "Conv3d-3x3x3": Convolution(3, 3, (16, 32, 64)),
}


@dataclass(frozen=True)
class Program:
    """A layer, its input, and the gradient of its output."""

    layer: torch.nn.Module
    x: Tensor
    gradient: Tensor

    def forward(self) -> Tensor:
        """The output."""
        return self.layer(self.x)

    def backward(self, y: Tensor) -> tuple[Tensor, ...]:
        """The gradients of input and parameters, as often as wanted."""
        return torch.autograd.grad(y, [self.x, *self.layer.parameters()], self.gradient, retain_graph=True)


class Programs:
    """The distributed layer, the sequential one, and the convolution that a worker computes, of what it would receive.

    The input is cut into an upper and a lower half. The output is as large, so that the same numbers serve as its
    gradient.
    """

    def __init__(self, conv: Convolution, side: int) -> None:
        world = Partition()
        halves = world.create_cartesian_topology_partition([1, 1, 2] + [1] * (conv.dims - 1))
        name, sizes, padding = f"Conv{conv.dims}d", (CHANNELS, CHANNELS, conv.kernel), conv.kernel // 2
        torch.manual_seed(0)  # so that both have the same parameters
        distributed = getattr(distdl.nn, f"Distributed{name}")(halves, *sizes, padding=padding)
        torch.manual_seed(0)
        sequential = getattr(torch.nn, name)(*sizes, padding=padding)
        x = torch.randn(1, CHANNELS, *[side] * conv.dims)
        block = x.chunk(2, dim=2)[world.rank].clone()
        read = torch.randn(1, CHANNELS, *(n + 2 * padding for n in block.shape[2:]))
        self.distributed = Program(distributed, block.requires_grad_(), block.detach())
        local = LocalConv3d if conv.dims == 3 else getattr(torch.nn, name)
        self.local = Program(local(*sizes), read.requires_grad_(), block.detach())
        self.sequential = Program(sequential, x.requires_grad_(), x.detach())
        self.parameters = sum(parameter.nbytes for parameter in sequential.parameters())
        self.halo = padding * x.nbytes // side  # bytes that a rank receives


def check(name: str, programs: Programs, comm: MPI.Intracomm) -> None:
    """Raises AssertionError unless both layers give the same results and gradients.

    Sums of whole numbers are exact in any order.
    """
    results = []
    for program in (programs.distributed, programs.sequential):
        program.x.data.round_()  # the gradient of the output with it
        for parameter in program.layer.parameters():
            parameter.data.mul_(100).round_()
        y = program.forward()
        results.append([y, *program.backward(y)])
    got, expected = results
    expected[:2] = [whole.chunk(2, dim=2)[comm.rank] for whole in expected[:2]]
    if comm.rank > 0:  # the first rank owns the parameters
        expected[2:] = [torch.empty_like(gradient) for gradient in got[2:]]
    for result, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=0, atol=0, msg=lambda text: f"{name}: {text}")
