"""Times a training step on two ranks beside what else there is for the same network, and compares gradients.

mpiexec -n 2 python -m mpi4py benchmarks/alternatives.py

Forward, backward and Adam in float32, with one thread a rank. *Kept* are the tensors that the forward pass leaves, and
*peak* is by how much a step lets the process grow, both in MiB on the rank that has most. *Gradients* are compared with
those of one process: the largest difference over the largest gradient. What does without distdl has torch's own
allocator. *Half of the batch each* is a bound: both ranks train on half of the batch at the same time, and exchange
nothing. HeAT, physicsnemo and mpi4torch are optional, and alternative_ways.py says how they are installed.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from alternative_ways import Way, adam, plain, ways
from contestants import ROOT, Contestant, gloo
from mpi4py import MPI
from peak import growth
from report import Row, machine, save
from timing import measure
from torch import Tensor
from trained_networks import MeanSquare, Network, chosen

import distdl

CALLS = 2  # of a turn, after one that is not timed: steps follow steps
HEADER = f"{'':40}{'ms':>9}{'/ first':>12}{'kept':>9}{'peak':>9}{'gradients':>12}"


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


def kept(way: Way) -> int:
    """Bytes of the tensors of 64 KiB and more that a forward pass leaves."""
    if not way.computes:
        return 0
    with way.setting():
        distdl.memory.set_pool_limit(None)  # which counts them
        before = distdl.memory.pool_used()
        loss = way.model(way.x)
        after = distdl.memory.pool_used()
        del loss
    return after - before


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
        problem, off, held = "", 0.0, 0
        try:
            way = make(copy.deepcopy(original), x)
            off = difference(way, expected)
            held = kept(way)
        except ModuleNotFoundError as error:
            problem = f"{error.name} is not installed"
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        problem, off, held = (max(comm.allgather(each)) for each in (problem, off, held))
        if problem:
            rows.append({"network": network.name, "way": name, "problem": problem})
            continue
        runs.append(Contestant(name, step_of(way), setting=way.setting))
        rows.append({"network": network.name, "way": name, "off": off, "kept": held})
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
    memory = "".join(f"{row[kind] / 2**20:9.0f}" for kind in ("kept", "grown"))
    return f"{name}{1e3 * row['seconds']:9.0f}{row['ratio']:12.2f}{memory}{row['off']:12.1e}"


def main() -> None:
    """Print each row as soon as it is known, write all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="for each network, about (default: %(default)s)")
    parser.add_argument("--larger", action="store_true", help="networks that people train, in place of small ones")
    parser.add_argument("--channels-last", action="store_true", help="images and volumes in this memory format")
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
        for network in chosen(options.larger, options.only, options.channels_last):
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
