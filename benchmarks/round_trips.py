"""How many round trips of the wire a call takes, for small tensors on two ranks: see README.md.

python benchmarks/two_hosts.py --delay 5
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from mpi4py import MPI
from ping_pong import ping_pong

import distdl.nn as dnn
from distdl import Partition

REPEATS = 15
WARM_UP = 4
HEAD_START = 0.03  # seconds, longer than a message takes

Layer = Callable[..., torch.Tensor]


def calls() -> dict[str, tuple[Layer, list[torch.Tensor]]]:
    """Layers, each with this rank's blocks of its inputs."""
    P = Partition()
    P_0 = P.create_partition_inclusive([0])
    row, column = (P.create_cartesian_topology_partition(shape) for shape in ([1, 2], [2, 1]))
    one = P_0.create_cartesian_topology_partition([1, 1])
    images = P.create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)  # the same weights on both ranks
    image = torch.randn(1, 2, 16, 8).chunk(2, 2)[P.rank]
    return {
        "Broadcast": (dnn.Broadcast(P_0, P), [torch.randn(64) if P_0.active else torch.empty(0)]),
        "SumReduce": (dnn.SumReduce(P, P_0), [torch.randn(64)]),
        "AllSumReduce": (dnn.AllSumReduce(P, [0]), [torch.randn(64)]),
        "AllGather": (dnn.AllGather(P, [0]), [torch.randn(64)]),
        "Repartition": (dnn.Repartition(row, column), [torch.randn(8, 8)]),
        "HaloExchange": (dnn.HaloExchange(row, [0, 1]), [torch.randn(8, 8)]),
        "MaxPool2d": (dnn.DistributedMaxPool2d(images, 3, stride=1), [image]),
        "Conv2d": (dnn.DistributedConv2d(images, 2, 2, 3, padding=1), [image]),
        "Linear": (dnn.DistributedLinear(row, 16, 16, P_y=one, P_W=row), [torch.randn(4, 8)]),
        "MSELoss": (dnn.DistributedMSELoss(row), [torch.randn(4, 8), torch.randn(4, 8)]),
        "CrossEntropyLoss": (dnn.DistributedCrossEntropyLoss(column), [torch.randn(4, 8), torch.arange(4)]),
    }  # fmt: skip


def round_trips(layer: Layer, inputs: list[torch.Tensor], unit: float) -> list[float]:
    """Round trips of a call without gradients, of one with gradients, and of its backward pass."""
    with torch.no_grad():
        alone = [timed(lambda: layer(*inputs))[0] for _ in range(WARM_UP + REPEATS)]
    forward, backward = [], []
    parameters = list(layer.parameters()) if isinstance(layer, torch.nn.Module) else []
    for _ in range(WARM_UP + REPEATS):
        x = [one.detach().requires_grad_(one.is_floating_point()) for one in inputs]
        seconds, y = timed(lambda x=x: layer(*x))
        forward.append(seconds)
        wanted = [one for one in (*x, *parameters) if one.requires_grad]
        backward.append(timed(functools.partial(torch.autograd.grad, y, wanted, torch.ones_like(y)))[0])
    return [median(one[WARM_UP:]) / unit for one in (alone, forward, backward)]


def timed(call: Callable[[], object]) -> tuple[float, object]:
    """Seconds of a call that all ranks begin at the same time, on the slowest of them, and what it returns.

    They agree on a time of the clock, which is that of the one machine. A barrier would not do: of two ranks, the one
    that comes to it later by up to the time of a message leaves it earlier by as much.
    """
    comm = MPI.COMM_WORLD
    start = comm.allreduce(perf_counter(), MPI.MAX) + HEAD_START
    while perf_counter() < start:
        pass
    result = call()
    return comm.allreduce(perf_counter() - start, MPI.MAX), result


def main() -> None:
    """Print the table."""
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}")
    torch.set_num_threads(1)
    ping_pong(comm, 64, 5)  # connects
    unit = 2 * ping_pong(comm, 64, 20)
    if comm.rank == 0:
        print(f"round trip: {1e3 * unit:.3f} ms\n\n{'':16} {'no grad':>8} {'forward':>8} {'backward':>8}")
    for name, (layer, inputs) in calls().items():
        row = round_trips(layer, inputs, unit)
        if comm.rank == 0:
            print(f"{name:16}", *(f"{one:8.2f}" for one in row), flush=True)


if __name__ == "__main__":
    main()
