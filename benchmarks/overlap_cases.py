"""What is overlapped: a primitive, and what can be computed while its messages travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import sleep
from typing import Any

import torch
from cases import first_alone, on
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, linear

from distdl import Partition, nn
from distdl.nn.conv.halo import Added, Borders

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Overlap:
    """Four programs on the same inputs. The last two give the same."""

    inputs: Outputs
    communicate: Callable[[], Outputs]
    compute: Callable[[], Outputs]
    one_after_other: Callable[[], Outputs]
    overlapped: Callable[[], Outputs]


@dataclass(frozen=True)
class Work:
    """How often to compute something, and how many seconds to sleep then, forward and backward."""

    times: int = 1
    pause: float = 0.0

    def rest(self, y: Tensor) -> Tensor:
        """y, after the pause."""
        return Pause.apply(y, self.pause) if self.pause else y


class Pause(torch.autograd.Function):
    """Time that passes, forward and backward, while the core is free."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        sleep(seconds)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        sleep(ctx.seconds)
        return gradients[0], None


MakesOverlap = Callable[[Partition, int, Work], Overlap]  # from the bytes to communicate, and how much to compute


def broadcast(world: Partition, size: int, work: Work) -> Overlap:
    """A vector from one rank to both, beside matrix products."""
    root = first_alone(world)
    return _beside_products(nn.Broadcast(root, world), on(root, size // 4), work)


def repartition(world: Partition, size: int, work: Work) -> Overlap:
    """A matrix from rows to columns, of which each rank sends half of its block, beside matrix products."""
    P_x, P_y = (world.create_cartesian_topology_partition(shape) for shape in ([2, 1], [1, 2]))
    rows = 1024
    return _beside_products(nn.Repartition(P_x, P_y), on(world, rows, 2 * size // 4 // rows), work)


def halo_exchange(world: Partition, size: int, work: Work) -> Overlap:
    """Blocks of rows, of which each rank sends the half next to the other rank, beside matrix products."""
    grid = world.create_cartesian_topology_partition([2, 1])
    rows = 64
    halo = [(rows // 2, rows // 2), (0, 0)]
    return _beside_products(nn.HaloExchange(grid, halo), on(world, rows, 2 * size // 4 // rows), work)


def convolution(world: Partition, size: int, work: Work) -> Overlap:
    """An image cut into an upper and a lower half: each is convolved while the rows at the cut travel.

    They travel without the rest of the block, and what they give is added, as in DistDL's own layers. They are a
    quarter of ``size``.
    """
    grid = world.create_cartesian_topology_partition([1, 1, 2, 1])
    halo = nn.HaloExchange(grid, [(0, 0), (0, 0), (1, 1), (0, 0)])
    channels, rows = 64, 16
    columns = size // 4 // 4 // channels
    x = on(world, 1, channels, rows, columns)
    weight = torch.randn(4 * work.times, channels, 3, 3, requires_grad=True)
    grown = torch.randn(1, channels, rows + 2, columns, requires_grad=True)

    def convolve(block: Tensor) -> Tensor:
        return work.rest(conv2d(block, weight, padding=(0, 1)))

    def overlapped() -> Outputs:
        block, border = Borders.apply(x, [(2, 1, 1)])
        started = halo.start(border)
        y = work.rest(conv2d(block, weight, padding=1))
        arrived = halo.wait(started)
        above, below = (conv1d(arrived[:, :, row], weight[:, :, row], padding=1).unsqueeze(2) for row in (0, -1))
        return (Added.apply(Added.apply(y, above, 2, 0), below, 2, rows - 1),)

    return Overlap(
        inputs=(x, weight, grown),
        communicate=lambda: (halo(x),),
        compute=lambda: (convolve(grown),),
        one_after_other=lambda: (convolve(halo(x)),),
        overlapped=overlapped,
    )


def linear_layer(world: Partition, size: int, work: Work) -> Overlap:
    """A wide linear layer after some small ones: its weight travels from its owner while these compute."""
    root = first_alone(world)
    broadcast = nn.Broadcast(root, world)
    features = 256
    weight = on(root, size // 4 // features, features)
    arrived = torch.randn(size // 4 // features, features, requires_grad=True)
    small = torch.randn(features, features, requires_grad=True)
    x = torch.randn(32, features, requires_grad=True)

    def layers(wide: Callable[[], Tensor]) -> Outputs:
        y = x
        for _ in range(work.times):
            y = linear(y, small) / 16  # the root of features: y stays about as large
        return (linear(work.rest(y), wide()),)

    def overlapped() -> Outputs:
        started = broadcast.start(weight)
        return layers(lambda: broadcast.wait(started))

    return Overlap(
        inputs=(weight, arrived, small, x),
        communicate=lambda: (broadcast(weight),),
        compute=lambda: layers(lambda: arrived),
        one_after_other=lambda: layers(lambda: broadcast(weight)),
        overlapped=overlapped,
    )


def _beside_products(layer: torch.nn.Module, x: Tensor, work: Work) -> Overlap:
    """The layer, and ``work`` products with a matrix that is in the caches, which have nothing to do with it."""
    factor = torch.linalg.qr(torch.randn(256, 256)).Q  # keeps what it is multiplied with as large as it is
    a = torch.randn(256, 256, requires_grad=True)

    def products() -> Tensor:
        b = a
        for _ in range(work.times):
            b = b @ factor
        return work.rest(b)

    def overlapped() -> Outputs:
        started = layer.start(x)
        b = products()
        return layer.wait(started), b

    return Overlap(
        inputs=(x, a),
        communicate=lambda: (layer(x),),
        compute=lambda: (products(),),
        one_after_other=lambda: (layer(x), products()),
        overlapped=overlapped,
    )


OVERLAPS: dict[str, MakesOverlap] = {
    "Broadcast": broadcast,
    "Repartition": repartition,
    "HaloExchange": halo_exchange,
    "Conv2d-halo": convolution,
    "Linear-weight": linear_layer,
}
