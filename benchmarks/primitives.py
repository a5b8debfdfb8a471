"""Times the primitives and their adjoints beside MPI by hand and torch.distributed with gloo: see README.md.

mpiexec -n 2 python -m mpi4py benchmarks/primitives.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import torch
from contestants import Contestant, MPIByHand, Raw, distdl_adjoint, distdl_forward, gloo
from entries import ENTRIES, Entry
from mpi4py import MPI
from report import HEADER, Row, line, machine, row, size_text
from timing import check, measure

from distdl import Partition

# Calls of a turn: a single short one would measure how long the caches take to get warm.
MOST_CALLS = 20
BYTES_OF_A_TURN = 4 << 20


def main() -> None:
    """Time what is asked for, print a row as soon as it is known, write all of them."""
    start = perf_counter()
    comm = MPI.COMM_WORLD
    options = arguments()
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}: mpiexec -n 2 python -m mpi4py {sys.argv[0]}")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks are the parallelism
    torch.manual_seed(comm.rank)

    entries = [entry for entry in ENTRIES if not options.only or entry.name in options.only]
    todo = [(entry, size) for entry in entries for size in options.sizes if size <= entry.up_to]
    say = print if comm.rank == 0 else lambda *text, **_: None
    facts = machine()
    rows: list[Row] = []
    say(*(f"{name}: {fact}" for name, fact in facts.items()), "", HEADER, sep="\n", flush=True)
    with gloo(comm) as group:
        for entry, size in todo:
            for direction, contestants in races(entry, size, [MPIByHand(comm), group]):
                seconds = (start + options.seconds - perf_counter()) / (2 * len(todo) - len(rows))
                calls = min(max(BYTES_OF_A_TURN // size, 1), MOST_CALLS)
                times = measure(contestants, comm, options.repeats, seconds, calls)
                rows.append(row(entry.name, direction, size, [one.name for one in contestants], times))
                say(line(rows[-1]), flush=True)
    met = [row["met"] for row in rows if row["goal"]]
    say(f"\n{len(rows)} rows in {perf_counter() - start:.0f} s; {sum(met)} of {len(met)} goals are met")
    if options.json and comm.rank == 0:
        options.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")


def races(entry: Entry, size: int, by_hand: Sequence[Raw]) -> Iterator[tuple[str, list[Contestant]]]:
    """The contestants of both directions, once they are known to give the same result."""
    case = entry.make(Partition(), size // torch.float32.itemsize)
    x = case.x.detach()
    y = case.layer(case.x)
    of_y = torch.randn_like(y)
    (of_x,) = torch.autograd.grad(y, case.x, of_y, retain_graph=True)
    forward = distdl_forward(case.layer, x, entry.checked)
    adjoint = distdl_adjoint(y, case.x, of_y, entry.checked)
    for direction, distdl, do, source, target in (
        ("forward", forward, case.forward, x, y.detach()),
        ("adjoint", adjoint, case.adjoint, of_y, of_x),
    ):
        contestants = [distdl, *(do(raw)(source, torch.zeros_like(target)) for raw in by_hand)]
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
    add("--seconds", type=float, default=150.0, help="for all rows, about (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    return parser.parse_args()


def size_from(text: str) -> int:
    """1024 from 1K."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = text if unit == 1 else text[:-1]
    size = int(number) * unit if number.isdigit() else 0
    if size < 1024 or size.bit_count() != 1:
        raise argparse.ArgumentTypeError(f"{text} is not a power of two of at least 1K")
    return size


if __name__ == "__main__":
    main()
