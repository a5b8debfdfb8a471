"""Times a training step of replicas beside torch's DistributedDataParallel with gloo: zero_grad, forward, backward.

mpiexec -n 2 python -m mpi4py benchmarks/replicas.py
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from contestants import ROOT, Contestant, gloo
from mpi4py import MPI
from report import Row, machine, save
from timing import measure
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import distdl

HEADER = f"{'medians of a step, in ms':34}{'alone':>9}{'DDP':>9}{'distdl':>9}{'ratio':>7}{'overlap':>9}"


@dataclass(frozen=True)
class Case:
    """A sequential network, and the samples of each replica."""

    name: str
    network: Callable[[], nn.Module]
    samples: Callable[[], Tensor]


def linear(layers: int, features: int) -> nn.Module:
    """Layers of the same size with ReLU between them."""
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(features, features), nn.ReLU())))


def convolutions() -> nn.Module:
    """Seven convolutions whose channels grow."""
    channels = [3, 16, 32, 32, 64, 64, 128, 128]
    layers = [(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in pairwise(channels)]
    return nn.Sequential(*(layer for pair in layers for layer in pair))


CASES = [
    Case("6 linear layers of 1024 x 1024", lambda: linear(6, 1024), lambda: torch.randn(64, 1024)),
    Case("60 linear layers of 128 x 128", lambda: linear(60, 128), lambda: torch.randn(64, 128)),
    Case("7 convolutions", convolutions, lambda: torch.randn(4, 3, 32, 32)),
]


def contestant(name: str, network: nn.Module, x: Tensor) -> Contestant:
    """A step without the optimizer."""

    def run() -> Tensor:
        network.zero_grad()
        loss = network(x).square().mean()
        loss.backward()
        return loss

    return Contestant(name, run)


def timed(case: Case, comm: MPI.Intracomm, seconds: float) -> Row:
    """A row of the table. The gradients of both are compared first."""
    torch.manual_seed(0)
    alone, theirs = case.network(), DistributedDataParallel(case.network())
    ours = distdl.DataParallel(case.network(), distdl.Partition(comm))
    theirs.load_state_dict(ours.state_dict())
    torch.manual_seed(comm.rank)
    x = case.samples()
    runs = [contestant("alone", alone, x), contestant("DDP", theirs, x), contestant("distdl", ours, x)]
    for run in runs:
        run.run()
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    single, ddp, own = np.median(measure(runs, comm, 1000, seconds, 1), axis=1).tolist()
    return {
        "network": case.name, "alone": single, "DDP": ddp, "distdl": own, "ratio": own / ddp, "overlap": ours.overlap,
        "met": own <= ddp,
    }  # fmt: skip


def line(row: Row) -> str:
    """A row as it is printed."""
    times = "".join(f"{1e3 * row[name]:9.2f}" for name in ("alone", "DDP", "distdl"))
    return f"{row['network']:34}{times}{row['ratio']:7.2f}{row['overlap']:9.0%}{'' if row['met'] else '  not met'}"


def main() -> None:
    """Print each row as soon as it is known, write all of them."""
    start = perf_counter()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="for each row, about (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks are the parallelism
    if comm.rank == ROOT:
        print(HEADER, "-" * len(HEADER), sep="\n")
    rows = []
    with gloo(comm):
        for case in CASES:
            rows.append(timed(case, comm, options.seconds))
            if comm.rank == ROOT:
                print(line(rows[-1]), flush=True)
    if comm.rank == ROOT:
        print(f"\n{perf_counter() - start:.0f} s")
        if options.json:
            save({"machine": machine(), "replicas": rows}, options.json)


if __name__ == "__main__":
    main()
