"""How many round trips of the wire a call takes, for small tensors on two ranks: see README.md.

Then the time of a message is fitted to these calls, and what follows from it for many ranks.

python benchmarks/emulated_hosts.py --delay 5
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from mpi4py import MPI
from ping_pong import ping_pong

import distdl.nn as dnn
from distdl import Partition, distribute, parameter_layout

MANY = (8, 1_000, 100_000)  # ranks
REPEATS = 15
WARM_UP = 4
HEAD_START = 0.03  # seconds, longer than a message takes

Layer = Callable[..., torch.Tensor]


def vote(n: int) -> int:
    """The messages that follow one upon another in a vote of n ranks: see src/comm/dissemination.cpp."""
    return next(rounds for rounds in range(1, n) if 8**rounds >= n)


def within(n: int) -> int:
    """Those of a sum or a broadcast among n ranks that have voted: direct ones, or those of MPI's trees."""
    return 1 if n <= 8 else math.ceil(math.log2(n))


def beside(n: int) -> int:
    """Those of a vote and of a sum or a broadcast: beside it among a few ranks, after it among many."""
    return vote(n) if n <= 8 else vote(n) + within(n)


Messages = Callable[[int], int]
PRIMITIVE = (beside, beside)
NEIGHBOURS = (vote, vote)
SUM_IN_LAYER = (lambda n: vote(n) + within(n), beside)
MESSAGES: dict[str, tuple[Messages, Messages]] = {  # of the forward and of the backward pass
    "Broadcast": PRIMITIVE,
    "SumReduce": PRIMITIVE,
    "AllSumReduce": PRIMITIVE,
    "AllGather": PRIMITIVE,
    "Repartition": NEIGHBOURS,
    "HaloExchange": NEIGHBOURS,
    "MaxPool2d": NEIGHBOURS,
    "Conv2d": (beside, lambda n: vote(n) + beside(n)),
    "Linear": SUM_IN_LAYER,
    "MSELoss": SUM_IN_LAYER,
    "CrossEntropyLoss": SUM_IN_LAYER,
    "4 Conv2d, each": (lambda n: vote(n) + beside(n) + 3, lambda n: 4 * vote(n) + beside(n)),
    "4 Conv2d, chain": (lambda n: vote(n) + beside(n), lambda n: vote(n) + beside(n)),
    "  and replicated": (lambda n: 2 * vote(n), lambda n: vote(n) + beside(n)),
}


def calls() -> dict[str, tuple[Layer, list[torch.Tensor]]]:
    """Layers, each with this rank's blocks of its inputs."""
    P = Partition()
    P_0 = P.create_partition_inclusive([0])
    row, column = (P.create_cartesian_topology_partition(shape) for shape in ([1, 2], [2, 1]))
    whole = P_0.create_cartesian_topology_partition([1, 1])
    images = P.create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)  # the same weights on both ranks
    image = torch.randn(1, 2, 16, 8).chunk(2, 2)[P.rank]
    four = torch.nn.Sequential(*(torch.nn.Conv2d(2, 2, 3, padding=1) for _ in range(4)))
    with parameter_layout("replicated"):  # the weights do not travel
        replicated = distribute(four, images, halos="chain")
    return {
        "Broadcast": (dnn.Broadcast(P_0, P), [torch.randn(64)[: 64 * P_0.active]]),
        "SumReduce": (dnn.SumReduce(P, P_0), [torch.randn(64)]),
        "AllSumReduce": (dnn.AllSumReduce(P, [0]), [torch.randn(64)]),
        "AllGather": (dnn.AllGather(P, [0]), [torch.randn(64)]),
        "Repartition": (dnn.Repartition(row, column), [torch.randn(8, 8)]),
        "HaloExchange": (dnn.HaloExchange(row, [0, 1]), [torch.randn(8, 8)]),
        "MaxPool2d": (dnn.DistributedMaxPool2d(images, 3, stride=1), [image]),
        "Conv2d": (dnn.DistributedConv2d(images, 2, 2, 3, padding=1), [image]),
        "Linear": (dnn.DistributedLinear(row, 16, 16, P_y=whole, P_W=row), [torch.randn(4, 8)]),
        "MSELoss": (dnn.DistributedMSELoss(row), [torch.randn(4, 8), torch.randn(4, 8)]),
        "CrossEntropyLoss": (dnn.DistributedCrossEntropyLoss(column), [torch.randn(4, 8), torch.arange(4)]),
        "4 Conv2d, each": (distribute(four, images, halos="each"), [image]),
        "4 Conv2d, chain": (distribute(four, images, halos="chain"), [image]),
        "  and replicated": (replicated, [image]),
    }  # fmt: skip


def round_trips(layer: Layer, inputs: list[torch.Tensor], unit: float) -> list[float]:
    """Round trips of a call without gradients, of a call with gradients, and of its backward pass."""
    with torch.no_grad():
        alone = [timed(lambda: layer(*inputs))[0] for _ in range(WARM_UP + REPEATS)]
    forward, backward = [], []
    parameters = list(layer.parameters()) if isinstance(layer, torch.nn.Module) else []
    for _ in range(WARM_UP + REPEATS):
        x = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
        seconds, y = timed(lambda x=x: layer(*x))
        forward.append(seconds)
        wanted = [tensor for tensor in (*x, *parameters) if tensor.requires_grad]
        backward.append(timed(functools.partial(torch.autograd.grad, y, wanted, torch.ones_like(y)))[0])
    return [median(times[WARM_UP:]) / unit for times in (alone, forward, backward)]


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


def fitted(table: dict[str, list[float]]) -> tuple[float, float, float]:
    """A message's time, a call's own, and the largest error: the times of a table as those of messages, and a rest."""
    counts = [count for name in table for count in (MESSAGES[name][0](2), *(way(2) for way in MESSAGES[name]))]
    times = torch.tensor([time for row in table.values() for time in row], dtype=torch.float64)
    terms = torch.tensor([[count, 1.0] for count in counts], dtype=torch.float64)
    message, rest = torch.linalg.lstsq(terms, times).solution.tolist()
    return message, rest, float((terms @ torch.tensor([message, rest], dtype=torch.float64) - times).abs().max())


def main() -> None:
    """Print the tables."""
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}")
    torch.set_num_threads(1)
    ping_pong(comm, 64, 5)  # connects
    unit = 2 * ping_pong(comm, 64, 20)
    if comm.rank == 0:
        print(f"round trip: {1e3 * unit:.3f} ms\n\n{'':16} {'no grad':>8} {'forward':>8} {'backward':>8}")
    table = {}
    for name, (layer, inputs) in calls().items():
        table[name] = round_trips(layer, inputs, unit)
        if comm.rank == 0:
            print(f"{name:16}", *(f"{trips:8.2f}" for trips in table[name]), flush=True)
    if comm.rank == 0:
        message, rest, error = fitted(table)
        print(f"\nfitted: {message:.3f} round trips a message and {rest:.3f} a call, at most {error:.3f} off")
        print("expected, forward and backward:\n\n" + " " * 16, *(f"{f'{n:,} ranks':>15}" for n in MANY))
        for name, ways in MESSAGES.items():
            expected = ([f"{message * way(n) + rest:.1f}" for way in ways] for n in MANY)
            print(f"{name:16}", *(f"{' / '.join(texts):>15}" for texts in expected))


if __name__ == "__main__":
    main()
