"""Times layers that networks are made of on two ranks beside torch.nn's: forward and backward of one call.

mpiexec -n 2 python -m mpi4py benchmarks/networks.py --only norms
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
from layers import grid
from mpi4py import MPI
from report import Row, machine, save
from timing import measure
from torch import Tensor

from distdl import Partition, nn

HEADER = f"{'medians, in ms':44}{'torch.nn':>10}{'2 ranks':>9}{'ratio':>7}  goal"


@dataclass(frozen=True)
class Case:
    """A layer of torch.nn, our layer on two workers, and the inputs, of which each worker passes its half.

    Attributes:
        most: the goal: how many times as long as torch.nn's our call may take.
        halves: whether torch.nn's layer has half of the inputs, on both ranks at once; else all of them on one.
    """

    name: str
    sequential: torch.nn.Module
    distributed: Callable[[Partition], torch.nn.Module]
    split: tuple[int | None, ...]  # for each input the dimension in which it is in blocks
    inputs: tuple[Tensor, ...]
    most: float
    halves: bool = True


def norms() -> Iterator[Case]:
    """An image of 32 channels in two halves, and tokens of 1024 features in two halves."""

    def batch(P: Partition) -> torch.nn.Module:
        return nn.DistributedBatchNorm2d(grid(P, 1, 1, P.size, 1), 32)

    image = torch.randn(1, 32, 512, 512)
    yield Case("BatchNorm2d, 32 x 512 x 512", torch.nn.BatchNorm2d(32), batch, (2,), (image,), 1.1)

    def layer(P: Partition) -> torch.nn.Module:
        return nn.DistributedLayerNorm(grid(P, 1, P.size, 1), 1024)

    tokens = torch.randn(8, 2048, 1024)
    yield Case("LayerNorm, 8 x 2048 tokens of 1024", torch.nn.LayerNorm(1024), layer, (1,), (tokens,), 1.05)


def losses() -> Iterator[Case]:
    """Scores of 32,000 classes in two halves beside all of them in one thread: at least 1.6 times as fast."""
    scores, targets = torch.randn(512, 32_000), torch.randint(32_000, (512,))
    name = "CrossEntropyLoss, 512 rows of 32,000 classes"

    def loss(P: Partition) -> torch.nn.Module:
        return nn.DistributedCrossEntropyLoss(grid(P, 1, P.size))

    yield Case(name, torch.nn.CrossEntropyLoss(), loss, (1, None), (scores, targets), 1 / 1.6, halves=False)

    def softmax(P: Partition) -> torch.nn.Module:
        return nn.DistributedSoftmax(grid(P, 1, P.size), 1)

    yield Case("Softmax, likewise", torch.nn.Softmax(1), softmax, (1,), (scores,), 1.0, halves=False)


def dropout() -> Iterator[Case]:
    """Elements and channels in two halves."""
    rows = torch.randn(4, 1 << 21)
    for name in ("Dropout", "AlphaDropout", "RReLU"):

        def layer(P: Partition, name: str = name) -> torch.nn.Module:
            made: torch.nn.Module = getattr(nn, f"Distributed{name}")(grid(P, 1, P.size))
            return made

        yield Case(f"{name}, 4 x 2^21", getattr(torch.nn, name)(), layer, (1,), (rows,), 1.1)

    def channels(P: Partition) -> torch.nn.Module:
        return nn.DistributedDropout2d(grid(P, 1, P.size, 1, 1))

    yield Case(
        "Dropout2d, 32 x 128 x 32 x 32", torch.nn.Dropout2d(), channels, (1,), (torch.randn(32, 128, 32, 32),), 1.1
    )


SECTIONS = {"norms": norms, "losses": losses, "dropout": dropout}


def contestant(name: str, layer: torch.nn.Module, inputs: tuple[Tensor, ...]) -> Contestant:
    """A call forward and backward. All inputs of floating point ask for gradients."""
    own = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    leaves = [x for x in (*own, *layer.parameters()) if x.requires_grad]
    gradient = torch.ones_like(layer(*own))

    def run() -> Any:
        return torch.autograd.grad(layer(*own), leaves, gradient)

    return Contestant(name, run)


def timed(case: Case, comm: MPI.Intracomm, seconds: float) -> Row:
    """A row of the table."""
    blocks = tuple(
        x if d is None else x.tensor_split(comm.size, d)[comm.rank].clone()
        for x, d in zip(case.inputs, case.split, strict=True)
    )
    theirs = Contestant("idle", lambda: case.inputs[0])
    if case.halves or comm.rank == ROOT:
        theirs = contestant("torch.nn", case.sequential, blocks if case.halves else case.inputs)
    ours = contestant("2 ranks", case.distributed(Partition(comm)), blocks)
    reference, median = np.median(measure([theirs, ours], comm, 1000, seconds, 1), axis=1).tolist()
    ratio = median / reference
    return {
        "layer": case.name, "torch.nn": reference, "2 ranks": median, "ratio": ratio, "goal": case.most,
        "met": ratio <= case.most,
    }  # fmt: skip


def line(row: Row) -> str:
    """A row as it is printed."""
    goal = f"{row['goal']:.2f}{'' if row['met'] else ': not met'}"
    return f"{row['layer']:44}{1e3 * row['torch.nn']:10.2f}{1e3 * row['2 ranks']:9.2f}{row['ratio']:7.2f}  {goal}"


def main() -> None:
    """Print each row as soon as it is known, write all of them."""
    start = perf_counter()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row, about (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="only these sections")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}: mpiexec -n 2 python -m mpi4py {sys.argv[0]}")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks are the parallelism
    torch.manual_seed(0)
    if comm.rank == ROOT:
        print(HEADER, "-" * len(HEADER), sep="\n")
    rows = []
    for section in options.only:
        for case in SECTIONS[section]():
            rows.append(timed(case, comm, options.seconds))
            if comm.rank == ROOT:
                print(line(rows[-1]), flush=True)
    if comm.rank == ROOT:
        print(f"\n{perf_counter() - start:.0f} s")
        if options.json:
            save({"machine": machine(), "networks": rows}, options.json)


if __name__ == "__main__":
    main()
