"""Times the cross entropy and the softmax of many classes, split in two, beside one thread on the whole.

mpiexec -n 2 python -m mpi4py benchmarks/losses.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from contestants import ROOT, Contestant
from mpi4py import MPI
from timing import measure
from torch import Tensor

from distdl import Partition, nn

GOAL = 1.6  # times faster, cross entropy forward and backward


def both(name: str, layer: torch.nn.Module, x: Tensor, *targets: Tensor) -> Contestant:
    """A forward and a backward pass."""
    x = x.clone().requires_grad_()
    gradient = torch.ones_like(layer(x, *targets))

    def run() -> Any:
        return torch.autograd.grad(layer(x, *targets), x, gradient)

    return Contestant(name, run)


def pairs(P: Partition, rows: int, classes: int) -> Iterator[tuple[str, list[Contestant]]]:
    """torch.nn's layer on the first rank, and ours on both."""
    P_x = P.create_cartesian_topology_partition([1, P.size])
    logits, targets = torch.randn(rows, classes), torch.randint(classes, (rows,))
    block = logits.tensor_split(P.size, 1)[P.rank]
    for sequential in (torch.nn.CrossEntropyLoss(), torch.nn.LogSoftmax(1), torch.nn.Softmax(1)):
        further = [targets] if isinstance(sequential, torch.nn.CrossEntropyLoss) else []
        layer = nn.SEQUENTIAL[type(sequential)].from_sequential(sequential, P_x)
        idle = Contestant("idle", lambda: logits)
        whole = both("torch.nn", sequential, logits, *further) if P.rank == ROOT else idle
        yield type(sequential).__name__, [whole, both("2 ranks", layer, block, *further)]


def main() -> None:
    """Print each line as soon as it is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for all lines, about (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=512, help="of logits (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=32000, help="of logits (default: %(default)s)")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}: mpiexec -n 2 python -m mpi4py {sys.argv[0]}")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks are the parallelism
    torch.manual_seed(0)
    if comm.rank == ROOT:
        print(f"{'medians, in ms':20}{'1 thread':>10}{'2 ranks':>10}{'faster':>9}  goal")
    for name, contestants in pairs(Partition(comm), options.rows, options.classes):
        one, two = 1e3 * np.median(measure(contestants, comm, 1000, options.seconds / 3, 1), axis=1)
        goal = f"{GOAL}{'' if one / two >= GOAL else ': not met'}" if name == "CrossEntropyLoss" else ""
        if comm.rank == ROOT:
            print(f"{name:20}{one:10.1f}{two:10.1f}{one / two:8.2f}x  {goal}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
