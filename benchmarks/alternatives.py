"""Times a training step on two ranks beside what else there is for the same network, and compares gradients.

mpiexec -n 2 python -m mpi4py benchmarks/alternatives.py

Forward, backward and Adam in float32, with one thread a rank. *Memory* is by how much a step lets the process grow at
its peak, on the rank that grows most. *Gradients* are compared with those of one process: the largest difference over
the largest gradient. What does without distdl has torch's own allocator. *Half of the batch each* is a bound: both
ranks train on half of the batch at the same time, and exchange nothing. HeAT, physicsnemo and mpi4torch are optional,
and alternative_ways.py says how they are installed.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from alternative_ways import Way, adam, plain, ways
from contestants import ROOT, Contestant, gloo
from distribute import SequentialResNet18, SequentialUNet3d
from mpi4py import MPI
from peak import growth
from report import Row, machine, save
from steps import Text, fno
from timing import measure
from torch import Tensor

import distdl

CALLS = 2  # of a turn, after one that is not timed: steps follow steps
HEADER = f"{'':40}{'ms':>9}{'/ first':>12}{'MiB':>9}{'gradients':>12}"


@dataclass(frozen=True)
class Network:
    """A network, its input as a whole, and the dimension of space or of the sequence."""

    name: str
    make: Callable[[], torch.nn.Module]
    x: Callable[[], Tensor]
    dim: int


def grouped() -> torch.nn.Module:
    """The U-Net with group norms alone, which no split of the batch changes."""
    model: torch.nn.Module = SequentialUNet3d()
    for stage in [*model.down, *model.up]:
        stage[1] = torch.nn.GroupNorm(2, stage[1].num_features)
    return model


NETWORKS = [
    Network("ResNet-18, 4 x 3 x 256 x 256", SequentialResNet18, lambda: torch.randn(4, 3, 256, 256), 2),
    Network("3-d U-Net, 2 x 1 x 64 cubed", SequentialUNet3d, lambda: torch.randn(2, 1, 64, 64, 64), 2),
    Network("3-d U-Net with group norms", grouped, lambda: torch.randn(2, 1, 64, 64, 64), 2),
    Network("FNO, 2 x 2 x 256 squared", lambda: fno.in_one_process().float(), lambda: torch.randn(2, 2, 256, 256), 2),
    Network("GPT, 4 layers of 256, 2 x 512 tokens", lambda: Text(256, 256, 8, 4, 512),
            lambda: torch.randint(256, (2, 512)), 1),
]  # fmt: skip


class MeanSquare(torch.nn.Module):
    """A network with a loss."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The mean over all elements of the result."""
        loss: Tensor = self.network(x).square().mean()
        return loss


def step_of(way: Way) -> Callable[[], Tensor]:
    """A step of training."""
    optimizer = way.optimizer or adam(way.model)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = way.model(way.x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step if way.computes else lambda: way.x


def difference(way: Way, expected: dict[str, Tensor]) -> float:
    """The largest difference of a gradient in a first step, over the largest gradient."""
    with way.setting():
        way.model(way.x).backward()
    found = way.gradients(way.model)
    largest = max(float(grad.abs().max()) for grad in expected.values())
    return max((float((grad - expected[name]).abs().max()) for name, grad in found.items()), default=0) / largest


def rows_of(network: Network, comm: MPI.Intracomm, seconds: float, only: Sequence[str], layout: str) -> Iterator[Row]:
    """A row for each way whose name has one of the texts; one that raises says why."""
    torch.manual_seed(0)
    original, x = MeanSquare(network.make()), network.x()
    twin = copy.deepcopy(original)
    twin(x).backward()
    expected, runs, rows = plain(twin), list[Contestant](), list[Row]()
    for name, make in ways(network.dim, comm, layout).items():
        if not any(text in name for text in only):
            continue
        problem, off = "", 0.0
        try:
            way = make(copy.deepcopy(original), x)
            off = difference(way, expected)
        except ModuleNotFoundError as error:
            problem = f"{error.name} is not installed"
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        problem, off = max(comm.allgather(problem)), max(comm.allgather(off))
        if problem:
            rows.append({"network": network.name, "way": name, "problem": problem})
            continue
        runs.append(Contestant(name, step_of(way), setting=way.setting))
        rows.append({"network": network.name, "way": name, "off": off})
    times = dict(
        zip((run.name for run in runs), np.median(measure(runs, comm, 100, seconds, CALLS), axis=1), strict=True)
    )
    for run in runs:
        distdl.memory.empty_pool()
        comm.Barrier()
        with run.setting():
            grown = max(comm.allgather(growth(run.run)[0]))
        next(row for row in rows if row["way"] == run.name).update(seconds=float(times[run.name]), grown=grown)
    first = times[runs[0].name] if runs else 1.0
    yield from ({**row, "ratio": row["seconds"] / first} if "seconds" in row else row for row in rows)


def line(row: Row) -> str:
    """A row as it is printed."""
    name = f"{'  ' + row['way']:40}"
    if "problem" in row:
        return f"{name} {row['problem'][:120]}"
    return f"{name}{1e3 * row['seconds']:9.0f}{row['ratio']:12.2f}{row['grown'] / 2**20:9.0f}{row['off']:12.1e}"


def main() -> None:
    """Print each row as soon as it is known, write all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="for each network, about (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose names have it")
    parser.add_argument("--ways", nargs="+", default=[""], metavar="TEXT", help="ways whose names have one, say distdl")
    parser.add_argument("--layout", default="replicated", help="of distdl's parameters: owner, sharded or replicated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    comm, rows = MPI.COMM_WORLD, list[Row]()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks are the parallelism
    if comm.rank == ROOT:
        print(HEADER, "-" * len(HEADER), sep="\n")
    with gloo(comm):
        for network in (each for each in NETWORKS if options.only in each.name):
            if comm.rank == ROOT:
                print(network.name, flush=True)
            for row in rows_of(network, comm, options.seconds, options.ways, options.layout):
                rows.append(row)
                if comm.rank == ROOT:
                    print(line(row), flush=True)
    if comm.rank == ROOT and options.json:
        save({"machine": machine(), "alternatives": rows}, options.json)


if __name__ == "__main__":
    main()
