"""Times dropout on blocks beside torch.nn's on a block of the same size: forward and backward pass, on two ranks.

mpiexec -n 2 python -m mpi4py benchmarks/dropout.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contestants import ROOT, Contestant
from mpi4py import MPI
from report import Row, machine, save
from timing import measure

from distdl import Partition, nn

GOAL = 1.1  # times torch.nn's
CALLS = 5  # of a turn
KINDS = {"Dropout": (4, 1 << 20), "Dropout2d": (32, 64, 32, 32), "AlphaDropout": (4, 1 << 18), "RReLU": (4, 1 << 18)}
"""The shape of a block by layer; the second dimension is split."""


def call(name: str, layer: torch.nn.Module, block: torch.Tensor) -> Contestant:
    """Forward and backward pass."""
    x, gradient = block.clone().requires_grad_(), torch.ones_like(block)

    def both() -> Any:
        return torch.autograd.grad(layer(x), x, gradient)

    return Contestant(name, both)


def rows(comm: MPI.Intracomm, seconds: float) -> Iterator[Row]:
    """A row for each layer: both ranks compute torch.nn's on their own block, and ours."""
    for name, shape in KINDS.items():
        P = Partition(comm).create_cartesian_topology_partition([1, comm.size, *[1] * (len(shape) - 2)])
        block = torch.randn(shape)
        contestants = [
            call("torch.nn", getattr(torch.nn, name)(), block),
            call("distdl", getattr(nn, f"Distributed{name}")(P), block),
        ]
        theirs, ours = np.median(measure(contestants, comm, 200, seconds, CALLS), axis=1).tolist()
        yield {"layer": name, "torch.nn": theirs, "distdl": ours, "ratio": ours / theirs, "met": ours <= GOAL * theirs}


def main() -> None:
    """Print each row as soon as it is known, write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each layer")
    parser.add_argument("--json", type=Path, help="file that all rows are written to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    comm, found = MPI.COMM_WORLD, []
    if comm.rank == ROOT:
        print(f"{'medians, in ms':16}{'torch.nn':>10}{'distdl':>10}{'ratio':>8}  goal {GOAL}")
    for row in rows(comm, options.seconds):
        found.append(row)
        if comm.rank == ROOT:
            times = f"{1e3 * row['torch.nn']:10.2f}{1e3 * row['distdl']:10.2f}{row['ratio']:8.2f}"
            print(f"{row['layer']:16}{times}  {'met' if row['met'] else 'not met'}", flush=True)
    if comm.rank == ROOT and options.json:
        save({"machine": machine(), "dropout": found}, options.json)


if __name__ == "__main__":
    main()
