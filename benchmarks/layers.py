"""Times calls of small layers on one rank and on two beside torch.nn's: what a call costs beyond computing.

mpiexec -n 2 python -m mpi4py benchmarks/layers.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from contestants import ROOT, Contestant
from mpi4py import MPI
from report import Row, machine, save
from timing import measure
from torch import Tensor

from distdl import Partition, nn

CALLS = 20  # of a turn
DIRECTIONS = ("no_grad", "forward", "forward+backward")
# Microseconds beyond torch.nn on two ranks, for the forward call; with the backward pass three times as many.
GOALS = {"Conv2d": 60, "Linear": 20, "Softmax": 50, "BatchNorm1d": 70, "LayerNorm": 60, "GroupNorm": 60,
         "MSELoss": 40, "CrossEntropyLoss": 40}  # fmt: skip
HEADER = (
    f"{'medians, in us':20} {'direction':18}{'torch.nn':>10}{'1 rank':>9}{'2 ranks':>9}{'beyond':>9}{'beyond':>9}  goal"
)


@dataclass(frozen=True)
class Small:
    """A layer of torch.nn, its inputs, and our layer on as many workers, of which each passes its block of them."""

    name: str
    sequential: torch.nn.Module
    distributed: Callable[[Partition], torch.nn.Module]
    split: int  # the dimension in which the inputs are in blocks
    inputs: tuple[Tensor, ...]


def grid(P: Partition, *shape: int) -> Partition:
    """The first workers of P as a grid."""
    return P.create_partition_inclusive(range(int(np.prod(shape)))).create_cartesian_topology_partition(shape)


def layers() -> Iterator[Small]:
    """Images of 8 x 8 in two halves; 32 features in two halves, of which the first worker gets the results."""

    def conv(channels: int) -> Small:
        def distributed(P: Partition) -> torch.nn.Module:
            return nn.DistributedConv2d(grid(P, 1, 1, P.size, 1), channels, channels, 3, padding=1)

        name = f"Conv2d, {channels} channel" + "s" * (channels > 1)
        sequential = torch.nn.Conv2d(channels, channels, 3, padding=1)
        return Small(name, sequential, distributed, 2, (torch.randn(1, channels, 8, 8),))

    yield from map(conv, (1, 4))

    def linear(P: Partition) -> torch.nn.Module:
        return nn.DistributedLinear(grid(P, 1, P.size), grid(P, 1, 1), grid(P, 1, P.size), 32, 16)

    yield Small("Linear", torch.nn.Linear(32, 16), linear, 1, (torch.randn(8, 32),))

    def pooling(P: Partition) -> torch.nn.Module:
        return nn.DistributedMaxPool2d(grid(P, 1, 1, P.size, 1), 2)

    yield Small("MaxPool2d", torch.nn.MaxPool2d(2), pooling, 2, (torch.randn(1, 1, 8, 8),))

    def softmax(P: Partition) -> torch.nn.Module:
        return nn.DistributedSoftmax(grid(P, 1, P.size), 1)

    yield Small("Softmax", torch.nn.Softmax(1), softmax, 1, (torch.randn(8, 32),))
    yield from norms()

    def mean_squares(P: Partition) -> torch.nn.Module:
        return nn.DistributedMSELoss(grid(P, P.size, 1))

    yield Small("MSELoss", torch.nn.MSELoss(), mean_squares, 0, (torch.randn(8, 4), torch.randn(8, 4)))

    def cross_entropy(P: Partition) -> torch.nn.Module:
        return nn.DistributedCrossEntropyLoss(grid(P, P.size, 1))

    classes = torch.randint(10, (8,))
    yield Small("CrossEntropyLoss", torch.nn.CrossEntropyLoss(), cross_entropy, 0, (torch.randn(8, 10), classes))


def norms() -> Iterator[Small]:
    """Norms whose groups are in two halves."""

    def batch(P: Partition) -> torch.nn.Module:
        return nn.DistributedBatchNorm1d(grid(P, P.size, 1), 4)

    yield Small("BatchNorm1d", torch.nn.BatchNorm1d(4), batch, 0, (torch.randn(8, 4),))

    def layer(P: Partition) -> torch.nn.Module:
        return nn.DistributedLayerNorm(grid(P, 1, P.size), 32)

    yield Small("LayerNorm", torch.nn.LayerNorm(32), layer, 1, (torch.randn(8, 32),))

    def group(P: Partition) -> torch.nn.Module:
        return nn.DistributedGroupNorm(grid(P, 1, 1, P.size), 2, 8)

    yield Small("GroupNorm", torch.nn.GroupNorm(2, 8), group, 2, (torch.randn(2, 8, 8),))


def calls(name: str, layer: torch.nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Contestant]:
    """The calls that are timed, by direction."""
    x = inputs[0].clone().requires_grad_()
    leaves, gradient = [x, *layer.parameters()], torch.ones_like(layer(x, *inputs[1:]))

    def forward() -> Tensor:
        return layer(x, *inputs[1:])

    def both() -> Any:
        return torch.autograd.grad(forward(), leaves, gradient)

    return {
        "no_grad": Contestant(name, forward, setting=torch.no_grad),
        "forward": Contestant(name, forward),
        "forward+backward": Contestant(name, both),
    }


def timed(small: Small, comm: MPI.Intracomm, seconds: float) -> Iterator[Row]:
    """A row for each direction. The first rank alone computes torch.nn's layer, and ours on one rank."""
    idle = dict.fromkeys(DIRECTIONS, Contestant("idle", lambda: small.inputs[0]))
    sequential = one_rank = idle
    if comm.rank == ROOT:
        sequential = calls("torch.nn", small.sequential, small.inputs)
        one_rank = calls("1 rank", small.distributed(Partition(MPI.COMM_SELF)), small.inputs)
    blocks = tuple(x.tensor_split(comm.size, small.split)[comm.rank].clone() for x in small.inputs)
    two_ranks = calls("2 ranks", small.distributed(Partition(comm)), blocks)
    for direction in DIRECTIONS:
        contestants = [of[direction] for of in (sequential, one_rank, two_ranks)]
        medians = np.median(measure(contestants, comm, 1000, seconds, CALLS), axis=1)
        row = {"layer": small.name, "direction": direction} | dict(
            zip(("torch.nn", "1 rank", "2 ranks"), medians.tolist(), strict=True)
        )
        goal = GOALS.get(small.name.partition(",")[0])
        if direction != "no_grad" and goal is not None:
            row["goal"] = goal if direction == "forward" else 3 * goal
            row["met"] = beyond(row)[1] <= row["goal"]
        yield row


def beyond(row: Row) -> tuple[float, float]:
    """Microseconds beyond torch.nn on one rank and on two."""
    return 1e6 * (row["1 rank"] - row["torch.nn"]), 1e6 * (row["2 ranks"] - row["torch.nn"])


def line(row: Row) -> str:
    """A row of the table."""
    medians = "".join(f"{1e6 * row[who]:9.1f}" for who in ("torch.nn", "1 rank", "2 ranks"))
    goal = f"{row['goal']}{'' if row['met'] else ': not met'}" if "goal" in row else ""
    by_one, by_two = beyond(row)
    return f"{row['layer']:20} {row['direction']:18} {medians}{by_one:9.1f}{by_two:9.1f}  {goal}".rstrip()


def main() -> None:
    """Print each row as soon as it is known, write all of them."""
    start = perf_counter()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=36.0, help="for all rows, about (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only layers with such a name, as Conv2d")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}: mpiexec -n 2 python -m mpi4py {sys.argv[0]}")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks are the parallelism
    torch.manual_seed(0)
    chosen = [layer for layer in layers() if not options.only or layer.name.partition(",")[0] in options.only]
    if comm.rank == ROOT:
        print(HEADER, "-" * len(HEADER), sep="\n")
    rows = []
    for small in chosen:
        for row in timed(small, comm, options.seconds / len(chosen) / len(DIRECTIONS)):
            rows.append(row)
            if comm.rank == ROOT:
                print(line(row), flush=True)
    if comm.rank == ROOT:
        print(f"\n{perf_counter() - start:.0f} s")
        if options.json:
            save({"machine": machine(), "layers": rows}, options.json)


if __name__ == "__main__":
    main()
