"""What it takes to construct an operator and to call it for the first time, with all that is agreed on and planned."""

from __future__ import annotations

from statistics import median
from time import perf_counter

from entries import Entry
from mpi4py import MPI
from report import Row

from distdl import Partition

ELEMENTS = 1 << 8
REPEATS = 100
GOAL = 1e-3  # seconds


def set_up(entry: Entry, comm: MPI.Intracomm) -> Row:
    """Times the first set-up of a process and repeated ones; all ranks call it, once for each entry.

    Every entry has a communicator of its own, so that the first set-up of each pays for the private communicators that
    later operators on the same ranks share.
    """
    own = comm.Dup()
    case = entry.make(Partition(own), ELEMENTS)
    times = []
    for _ in range(1 + REPEATS):
        own.Barrier()
        start = perf_counter()
        layer = case.construct()
        layer(case.x)
        times.append(own.allreduce(perf_counter() - start, MPI.MAX))
    own.Free()
    first, later = times[0], median(times[1:])
    return {
        "primitive": entry.name, "first": first, "median": later,
        "goal": f"{1e6 * GOAL:.0f} us", "met": max(first, later) <= GOAL,
    }  # fmt: skip


def header(row: Row) -> str:
    """What stands over the lines."""
    return f"{'set-up, in us':22} {'first':>10} {'median':>10}  goal"


def line(row: Row) -> str:
    """A row of the table."""
    what = f"{row['primitive']:22} {1e6 * row['first']:10.0f} {1e6 * row['median']:10.0f}"
    return f"{what}  {row['goal']}{'' if row['met'] else ': not met'}"
