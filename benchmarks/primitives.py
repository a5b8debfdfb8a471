"""Times the primitives and their adjoints beside MPI by hand and torch.distributed with gloo: see README.md.

mpiexec -n 2 python -m mpi4py benchmarks/primitives.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from types import ModuleType

import peak
import report
import set_up
import torch
from contestants import Clone, Contestant, MPIByHand, Raw, distdl_adjoint, distdl_forward, gloo
from entries import ENTRIES, Entry
from mpi4py import MPI
from plot import plot
from report import Row, machine, row, save, size_from, size_text
from timing import check, measure

from distdl import Partition

# Calls of a turn: a single short one would measure how long the caches take to get warm.
MOST_CALLS = 20
BYTES_OF_A_TURN = 4 << 20


def main() -> None:
    """Measure what is asked for, print a row as soon as it is known, write all of them."""
    start = perf_counter()
    comm = MPI.COMM_WORLD
    options = arguments()
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}: mpiexec -n 2 python -m mpi4py {sys.argv[0]}")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks are the parallelism
    torch.manual_seed(comm.rank)
    facts = machine()
    if comm.rank == 0:
        print(*(f"{name}: {fact}" for name, fact in facts.items()), sep="\n")

    entries = [entry for entry in ENTRIES if not options.only or entry.name in options.only]
    checked = [entry for entry in entries if entry.checked]
    races = [(entry, size) for entry in entries for size in options.sizes if size <= entry.up_to]
    largest = max(options.sizes)
    figures = {
        "machine": facts,
        "set-up": _printed(set_up, (set_up.set_up(entry, comm) for entry in checked)),
        "peak": _printed(peak, (row for entry in checked for row in peak.peaks(entry, largest, comm))),
        "times": _printed(report, times(races, comm, options.repeats, start + options.seconds)),
    }
    goals = [row["met"] for table in ("set-up", "peak", "times") for row in figures[table] if row["goal"]]
    if comm.rank == 0:
        print(f"\n{perf_counter() - start:.0f} s; {sum(goals)} of {len(goals)} goals are met")
        if options.json:
            save(figures, options.json)
        if options.plot:
            plot(figures["times"], options.plot)


def _printed(table: ModuleType, rows: Iterable[Row]) -> list[Row]:
    """The rows, each printed as soon as it is there, in the words of the module that makes them."""
    kept, header = [], ""
    for record in rows:
        if MPI.COMM_WORLD.rank == 0:
            if table.header(record) != header:
                header = table.header(record)
                print("", header, "-" * len(header), sep="\n")
            print(table.line(record), flush=True)
        kept.append(record)
    return kept


def times(races: Sequence[tuple[Entry, int]], comm: MPI.Intracomm, repeats: int, stop: float) -> Iterator[Row]:
    """A row for each direction of each race, all of them done by about ``stop``."""
    done = 0
    with gloo(comm) as group:
        for entry, size in races:
            rivals = [MPIByHand(comm), group] if entry.moves else [Clone()]
            for direction, contestants in directions(entry, size, rivals):
                seconds = (stop - perf_counter()) / (2 * len(races) - done)
                calls = min(max(BYTES_OF_A_TURN // size, 1), MOST_CALLS)
                measured = measure(contestants, comm, repeats, seconds, calls)
                yield row(entry.name, direction, size, [contestant.name for contestant in contestants], measured)
                done += 1


def directions(entry: Entry, size: int, rivals: Sequence[Raw | Clone]) -> Iterator[tuple[str, list[Contestant]]]:
    """The contestants in both directions, once they are known to give the same result."""
    case = entry.make(Partition(), size // torch.float32.itemsize)
    x = case.x.detach()
    layer = case.construct()
    y = layer(case.x)
    of_y = torch.randn_like(y)
    (of_x,) = torch.autograd.grad(y, case.x, of_y, retain_graph=True)
    forward = distdl_forward(layer, x, entry.checked)
    adjoint = distdl_adjoint(y, case.x, of_y, entry.checked)
    for direction, distdl, do, source, target in (
        ("forward", forward, case.forward, x, y.detach()),
        ("adjoint", adjoint, case.adjoint, of_y, of_x),
    ):
        contestants = [distdl, *(do(rival)(source, torch.zeros_like(target)) for rival in rivals)]
        for contestant in contestants:
            check(f"{entry.name}, {direction}, {size_text(size)}", contestant, target)
        yield direction, contestants


def arguments() -> argparse.Namespace:
    """What the command line says."""
    names = [entry.name for entry in ENTRIES]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--sizes", nargs="+", type=size_from, metavar="SIZE", default=[1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26],
        help="bytes of the largest tensor on a rank, powers of two (default: 1K 64K 1M 16M 64M)")  # fmt: skip
    add("--only", nargs="+", choices=names, metavar="NAME", help=f"only these entries, of {', '.join(names)}")
    add("--repeats", type=int, default=1000, help="turns per contestant and row, at most (default: %(default)s)")
    add("--seconds", type=float, default=300.0, help="for all rows, about (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the figures to this file")
    add("--plot", type=Path, metavar="FILE", help="draw them into this SVG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
