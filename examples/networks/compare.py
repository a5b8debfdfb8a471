"""Trains four networks on tensors that are split over all ranks, beside their sequential twins, and compares them.

    mpiexec -n 4 python -m mpi4py examples/networks/compare.py [--steps 5]

The data is random, and everything is computed in float64: what differs is rounding.
"""

import argparse
import time

import torch
from encoder import Encoder, SequentialEncoder
from gpt import GPT, SequentialGPT
from mpi4py import MPI
from resnet import ResNet18, SequentialResNet18
from unet import SequentialUNet3d, UNet3d

import distdl
import distdl.nn as dnn


def part(whole, P_x, axes):
    """This worker's balanced block of a tensor that all ranks have; axes[d]: the axis of P_x that cuts dimension d."""
    for d, axis in enumerate(axes):
        if axis is not None:
            sizes = [len(range(i, whole.shape[d], P_x.shape[axis])) for i in range(P_x.shape[axis])]
            whole = whole.split(sizes, d)[P_x.index[axis]]
    return whole


def resnet(P_world, generator):
    """Images in blocks of rows."""
    P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1])
    P_y = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1])
    images = torch.randn(4, 3, 67, 67, dtype=torch.float64, generator=generator)
    labels = torch.randint(10, (4,), generator=generator)
    own = labels if P_y.active else distdl.zero_volume_tensor(dtype=torch.int64)
    criterion = dnn.DistributedCrossEntropyLoss(P_y)
    return (
        lambda: (SequentialResNet18(8), lambda net: torch.nn.functional.cross_entropy(net(images), labels)),
        lambda: (ResNet18(P_x, P_y, 8), lambda net: criterion(net(part(images, P_x, (0, 1, 2, 3))), own)),
    )


def unet(P_world, generator):
    """Volumes in blocks of planes."""
    P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1, 1])
    volumes = torch.randn(1, 1, 28, 16, 20, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, (1, 28, 16, 20), generator=generator)
    criterion, own = dnn.DistributedCrossEntropyLoss(P_x), part(labels, P_x, (0, 2, 3, 4))
    return (
        lambda: (SequentialUNet3d(4), lambda net: torch.nn.functional.cross_entropy(net(volumes), labels)),
        lambda: (UNet3d(P_x, 4), lambda net: criterion(net(part(volumes, P_x, (0, 1, 2, 3, 4))), own)),
    )


def text(P_world, generator, sequential, distributed):
    """Sequences in blocks of tokens."""
    size = P_world.size
    P_x, P_tokens, P_heads, P_flat = (
        P_world.create_cartesian_topology_partition(shape)
        for shape in ([1, size, 1], [1, size], [1, 1, size, 1], [size, 1])
    )
    tokens, places = torch.randint(50, (2, 39), generator=generator), torch.arange(38).expand(2, 38)
    targets, tokens = tokens[:, 1:], tokens[:, :-1]
    own, own_places, own_targets = (part(tensor, P_tokens, (0, 1)) for tensor in (tokens, places, targets))
    criterion = dnn.DistributedCrossEntropyLoss(P_flat)

    def whole_loss(net):
        return torch.nn.functional.cross_entropy(net(tokens, places).flatten(0, 1), targets.flatten())

    def loss(net):
        return criterion(net(own, own_places).flatten(0, 1), own_targets.flatten())

    partitions = (P_x, P_tokens, P_heads) if distributed is GPT else (P_x, P_tokens)
    return lambda: (sequential(), whole_loss), lambda: (distributed(*partitions), loss)


NETWORKS = {
    "ResNet-18": resnet,
    "3-d U-Net": unet,
    "encoder": lambda P_world, generator: text(P_world, generator, SequentialEncoder, Encoder),
    "GPT": lambda P_world, generator: text(P_world, generator, SequentialGPT, GPT),
}


def train(make, steps):
    """The losses of some steps, and the seconds that they took."""
    torch.manual_seed(0)
    network, loss_of = make()
    network.double()
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=0.001), []
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(network)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, time.perf_counter() - start


def main():
    """Train each network twice, and say how far the losses are apart."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=5)
    steps = parser.parse_args().steps
    P_world = distdl.Partition(MPI.COMM_WORLD)
    say = print if P_world.rank == 0 else lambda *_: None
    say(f"{steps} steps on {P_world.size} ranks")
    say(f"{'network':12} {'last loss':>16} {'sequential':>16} {'difference':>12}  seconds")
    for name, network in NETWORKS.items():
        sequential, distributed = network(P_world, torch.Generator().manual_seed(0))
        (expected, _), (losses, seconds) = train(sequential, steps), train(distributed, steps)
        apart = max(abs(a - b) / abs(a) for a, b in zip(expected, losses, strict=True))
        say(f"{name:12} {losses[-1]:16.12f} {expected[-1]:16.12f} {apart:12.1e}  {seconds:7.2f}")
        if apart > 1e-10:
            raise SystemExit(f"{name}: the losses differ by {apart}, which is no rounding")


main()
