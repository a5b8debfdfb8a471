"""How much of the communication hides behind computing, between start and wait, forward and backward: see README.md.

mpiexec -n 2 python -m mpi4py benchmarks/overlap.py
python benchmarks/emulated_hosts.py benchmarks/overlap.py --wire
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from contestants import Contestant
from mpi4py import MPI
from overlap_cases import OVERLAPS, Outputs, Overlap, Work
from report import Row, machine, save, size_from
from timing import measure

from distdl import Partition

GOAL = 0.8
PROGRAMS = ("communicate", "compute", "one_after_other", "overlapped")
MOST_REPEATS, MOST_GUESSES = 1000, 8
COLUMNS = ("cores", "median, in ms", "direction", "communicate", "compute", "one after other", "overlapped", "hidden")
HEADER = "{:9} {:14} {:9} {:>12} {:>12} {:>16} {:>12} {:>7}  goal"
LINE = "{:9} {:14} {:9} {:12.2f} {:12.2f} {:16.2f} {:12.2f} {:7.0%}  {}"

# From one of an overlap's programs and the inputs to what is timed.
Prepares = Callable[[Callable[[], Outputs], Outputs], Callable[[], Outputs]]


def main() -> None:
    """With a core for each rank; over the wire also with a spare core, elsewhere with two each if there are four."""
    comm = MPI.COMM_WORLD
    options = arguments()
    cores = sorted(os.sched_getaffinity(0))
    if comm.size != 2 or len(cores) < 2:
        raise SystemExit(f"two ranks on two cores are needed, these are {comm.size} on {len(cores)}: see {sys.argv[0]}")
    torch.set_num_threads(1)
    torch.manual_seed(comm.rank)
    rows: list[Row] = []
    if comm.rank == 0:
        print(header := HEADER.format(*COLUMNS), "-" * len(header), sep="\n")
    if options.wire:  # it is a program, which takes its time where it can
        of_each_rank = {"one each": cores, "one spare": cores}
    else:
        of_each_rank = {"one each": cores[comm.rank : comm.rank + 1]}
        if len(cores) >= 4:
            of_each_rank["two each"] = cores[2 * comm.rank : 2 * comm.rank + 2]
    for which, own_cores in of_each_rank.items():
        use(own_cores)
        for name in options.only or OVERLAPS:
            for row in overlaps(name, options.size, options.seconds, which):
                rows.append({"cores": which, "wire": options.wire, "bytes": options.size, **row})
                if comm.rank == 0:
                    print(line(rows[-1]), flush=True)
    if options.json and comm.rank == 0:
        save({"machine": machine(), "overlap": rows}, options.json)


def use(cores: list[int]) -> None:
    """Bind all threads of this process, MPI's and distdl's too, and those that they start."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def overlaps(name: str, size: int, seconds: float, cores: str) -> Iterator[Row]:
    """Both directions of one overlap, with as much to compute as there is to communicate in each of them.

    Where a core is to be spared, the last rank sleeps for as long as the other computes.
    """
    has_goal = cores != "one each"
    sleeps = cores == "one spare" and MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1
    make = partial(OVERLAPS[name], Partition(), size)
    check(name, make(Work()))
    for direction, program in (("forward", forward), ("backward", backward)):
        often, pause = equal_work(make, program)
        work = Work(pause=pause) if sleeps else Work(often)
        times = medians(make(work), program, PROGRAMS, seconds)
        communicate, compute, _, overlapped = times.values()
        hidden = (communicate + compute - overlapped) / min(communicate, compute)
        yield {
            "overlap": name, "direction": direction, "median": times, "hidden": hidden,
            "goal": f"{GOAL:.0%}" if has_goal else "", "met": not has_goal or hidden >= GOAL,
        }  # fmt: skip


def equal_work(make: Callable[[Work], Overlap], program: Prepares) -> tuple[int, float]:
    """How often to compute for it to take about as long as the communication, and how many seconds that takes."""
    often = 1
    for _ in range(MOST_GUESSES):
        times = medians(make(Work(often)), program, PROGRAMS[:2], seconds=0.5)
        ratio = times["communicate"] / times["compute"]
        if 0.9 < ratio < 1.1:
            break
        often = max(1, round(often * ratio))
    return often, times["compute"]


def medians(overlap: Overlap, program: Prepares, names: Sequence[str], seconds: float) -> dict[str, float]:
    """Seconds that programs of an overlap take, in one direction."""
    contestants = [Contestant(name, program(getattr(overlap, name), overlap.inputs)) for name in names]
    times = measure(contestants, MPI.COMM_WORLD, MOST_REPEATS, seconds, calls=1)
    return dict(zip(names, np.median(times, axis=1).tolist(), strict=True))


def forward(program: Callable[[], Outputs], inputs: Outputs) -> Callable[[], Outputs]:
    """The program as an evaluation loop runs it."""

    def run() -> Outputs:
        with torch.no_grad():
            return program()

    return run


def backward(program: Callable[[], Outputs], inputs: Outputs) -> Callable[[], Outputs]:
    """The backward pass of the program alone."""
    outputs = program()
    gradients = [torch.randn_like(output) for output in outputs]
    return lambda: torch.autograd.grad(outputs, inputs, gradients, retain_graph=True, allow_unused=True)


def check(name: str, overlap: Overlap) -> None:
    """Raises AssertionError unless the overlapped program gives what the other gives, gradients too.

    Of whole numbers all sums are exact, in whatever order.
    """
    for x in overlap.inputs:
        x.data.round_()
    results = []
    for program in (overlap.one_after_other, overlap.overlapped):
        outputs = program()
        gradients = [torch.ones_like(output) for output in outputs]
        results.append([*outputs, *torch.autograd.grad(outputs, overlap.inputs, gradients, allow_unused=True)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=lambda text: f"{name}: {text}")


def line(row: Row) -> str:
    """A row of the table."""
    times = (1e3 * seconds for seconds in row["median"].values())
    goal = row["goal"] + ("" if row["met"] else ": not met")
    return LINE.format(row["cores"], row["overlap"], row["direction"], *times, row["hidden"], goal).rstrip()


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--size", type=size_from, default=16 << 20, help="bytes to communicate, a power of two (default: 16M)")
    add("--only", nargs="+", choices=list(OVERLAPS), metavar="NAME", help=f"only these, of {', '.join(OVERLAPS)}")
    add("--seconds", type=float, default=4.0, help="for each row, about (default: %(default)s)")
    add("--wire", action="store_true", help="the network moves the data: no core is bound")
    add("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
