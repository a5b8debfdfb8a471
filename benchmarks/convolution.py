"""Times convolutions over two blocks beside the sequential layer, and measures the memory of both: see README.md.

mpiexec -n 2 python -m mpi4py benchmarks/convolution.py
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import torch
from contestants import ROOT, Contestant
from convolution_cases import CONVOLUTIONS, Program, Programs, check
from mpi4py import MPI
from peak import SLACK, growth
from report import Row, machine, save
from timing import measure
from torch import Tensor

import distdl

LARGE = 512 * 512  # elements of a channel, from which on there are goals
SPEED_UP, EXCHANGE = 1.9, 0.03
MOST_REPEATS, MOST_CALLS = 1000, 20
NAP = 0.01  # seconds
M_MMAP_THRESHOLD = -3  # malloc.h
COMPARED = ("distdl", "local", "1 thread", "2 threads")
TIMES = ("median, in ms", "side", "direction", *COMPARED, "speed-up", "over 2", "exchange")
MEMORY = ("in MiB", "side", "", "distdl", "1 thread", "halos", "ratio")
TIMES_LINE = "{:13} {:5} {:9}" + 6 * " {:9.2f}" + " {:9.1%}  {}"
MEMORY_LINE = "{:13} {:5} {:9}" + 3 * " {:9.1f}" + " {:9.2f}  {}"

Setting = Callable[[], AbstractContextManager[object]]


def main() -> None:
    """Check all layers, time them, then measure their memory."""
    start = perf_counter()
    comm = MPI.COMM_WORLD
    options = arguments()
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}: mpiexec -n 2 python -m mpi4py {sys.argv[0]}")
    torch.set_num_threads(1)
    names = options.only or list(CONVOLUTIONS)
    for name in names:
        check(name, Programs(CONVOLUTIONS[name], min(CONVOLUTIONS[name].sides)), comm)
    inputs = [(name, side) for name in names for side in options.sides or CONVOLUTIONS[name].sides]
    figures = {
        "machine": machine(),
        "times": printed(TIMES, times_line, (row for run in inputs for row in times(*run, options.seconds, comm))),
        "memory": printed(MEMORY, memory_line, (row for run in filter(is_large, inputs) for row in memory(*run, comm))),
    }
    goals = [row["met"] for table in ("times", "memory") for row in figures[table] if row["goal"]]
    if comm.rank == 0:
        print(f"\n{perf_counter() - start:.0f} s; {sum(goals)} of {len(goals)} goals are met")
        if options.json:
            save(figures, options.json)


def is_large(case: tuple[str, int]) -> bool:
    """Whether there are goals for the inputs of this layer with this many elements a side."""
    name, side = case
    return side ** CONVOLUTIONS[name].dims >= LARGE


def times(name: str, side: int, seconds: float, comm: MPI.Intracomm) -> Iterator[Row]:
    """Both directions of one layer, for inputs of one size."""
    convolution = CONVOLUTIONS[name]
    programs = Programs(convolution, side)
    settings = (nullcontext, nullcontext, partial(alone, comm, 1), partial(alone, comm, 2))
    on_both = (programs.distributed, programs.local)
    sequential = programs.sequential if comm.rank == ROOT else None
    calls = max(1, min(LARGE // side**convolution.dims, MOST_CALLS))
    for direction, contestant in (("forward", forward), ("backward", backward)):
        contestants = list(map(contestant, COMPARED, (*on_both, sequential, sequential), settings))
        measured = measure(contestants, comm, MOST_REPEATS, seconds, calls)
        distributed, local, *threads = medians = np.median(measured, axis=1).tolist()
        speed_up, exchange = [sequential / distributed for sequential in threads], 1 - local / distributed
        has_goal = is_large((name, side))
        yield {
            "layer": name, "side": side, "direction": direction, "repeats": measured.shape[1],
            "median": dict(zip(COMPARED, medians, strict=True)), "speed-up": speed_up, "exchange": exchange,
            "goal": f"{SPEED_UP}, {EXCHANGE:.0%}" if has_goal else "",
            "met": not has_goal or (speed_up[0] >= SPEED_UP and exchange < EXCHANGE),
        }  # fmt: skip


def forward(name: str, program: Program | None, setting: Setting) -> Contestant:
    """The layer as an evaluation loop calls it, or nothing."""

    @contextmanager
    def without_graph() -> Iterator[None]:
        with setting(), torch.no_grad():
            yield

    return Contestant(name, program.forward if program else lambda: None, setting=without_graph)


def backward(name: str, program: Program | None, setting: Setting) -> Contestant:
    """The backward pass of the layer alone, or nothing. The graph is there for a turn only, so that more fits."""
    outputs: list[Tensor] = []

    @contextmanager
    def with_graph() -> Iterator[None]:
        with setting():
            if program:
                outputs.append(program.forward())
            yield
            outputs.clear()

    return Contestant(name, lambda: program.backward(*outputs) if program else None, setting=with_graph)


@contextmanager
def alone(comm: MPI.Intracomm, threads: int) -> Iterator[None]:
    """The first rank computes, with so many threads. The other one sleeps: waiting in MPI would use its core."""
    if comm.rank != ROOT:
        yield
        while not comm.Iprobe(ROOT):
            sleep(NAP)
        comm.recv(source=ROOT)
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(1)
        comm.send(None, 1 - ROOT)


def memory(name: str, side: int, comm: MPI.Intracomm) -> Iterator[Row]:
    """By how much forward and backward make the process grow at their peak, and what is saved for backward.

    The goal is what the sequential layer takes for the larger half of the rows, with all parameters, and the halo, at
    the peak that of the gradient too.
    """
    # What is freed goes back to the system at once, or the peak would depend on what malloc kept of earlier calls.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    programs = Programs(CONVOLUTIONS[name], side)
    distributed = comm.allgather(needed(programs.distributed, comm))
    with alone(comm, 1):
        sequential = needed(programs.sequential, MPI.COMM_SELF) if comm.rank == ROOT else {}
    sequential = comm.bcast(sequential, ROOT)
    larger_half = (side + 1) // 2 / side
    for what, halos, slack in (("peak", 2, SLACK), ("saved", 1, 0)):
        most = max(rank[what] for rank in distributed)
        allowed = sequential[what] * larger_half + programs.parameters + halos * programs.halo + slack
        yield {
            "layer": name, "side": side, "what": what, "distdl": most, "1 thread": sequential[what],
            "halos": halos * programs.halo, "goal": "1/2 + halos", "met": most <= allowed,
        }  # fmt: skip


def needed(program: Program, comm: MPI.Intracomm) -> dict[str, int]:
    """Bytes at the peak of forward and backward, and bytes saved in between; not the first time, and an empty pool."""
    saved: dict[int, int] = {}  # by address, for what is saved twice is there once

    def save_for_backward(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    def step() -> tuple[Tensor, ...]:
        with torch.autograd.graph.saved_tensors_hooks(save_for_backward, lambda tensor: tensor):
            y = program.forward()
        return y, *program.backward(y)

    step()
    distdl.memory.empty_pool()
    saved.clear()
    comm.Barrier()
    return {"peak": growth(step)[0], "saved": sum(saved.values())}


def printed(titles: Sequence[str], line: Callable[[Row], str], rows: Iterable[Row]) -> list[Row]:
    """The rows, each printed by the first rank as soon as it is there."""
    rank = MPI.COMM_WORLD.rank
    if rank == ROOT:
        header = "{:13} {:>5} {:9}".format(*titles) + "".join(f" {title:>9}" for title in titles[3:]) + "  goal"
        print("", header, "-" * len(header), sep="\n")
    kept = []
    for row in rows:
        if rank == ROOT:
            print(line(row), flush=True)
        kept.append(row)
    return kept


def times_line(row: Row) -> str:
    """A row of the first table."""
    milliseconds = (1e3 * seconds for seconds in row["median"].values())
    what = row["layer"], row["side"], row["direction"]
    return TIMES_LINE.format(*what, *milliseconds, *row["speed-up"], row["exchange"], aim(row)).rstrip()


def memory_line(row: Row) -> str:
    """A row of the second table."""
    mebibytes = (row[what] / (1 << 20) for what in ("distdl", "1 thread", "halos"))
    what = row["layer"], row["side"], row["what"]
    return MEMORY_LINE.format(*what, *mebibytes, row["distdl"] / row["1 thread"], aim(row)).rstrip()


def aim(row: Row) -> str:
    """The goal, and whether it is missed."""
    return row["goal"] + ("" if row["met"] else ": not met")


def arguments() -> argparse.Namespace:
    """What the command line says."""
    names = list(CONVOLUTIONS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--sides", nargs="+", type=int, metavar="N", help="elements a side (default: 64 to 1024, or fewer)")
    add("--only", nargs="+", choices=names, metavar="NAME", help=f"only these, of {', '.join(names)}")
    add("--seconds", type=float, default=2.0, help="for each row, about; at least five repeats (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
