"""What a halo exchange among many ranks costs one rank: on the ranks of the job, or for ranks that do not exist.

python benchmarks/scale.py
mpiexec -n 20 python -m mpi4py benchmarks/scale.py

Alone it says what the description of up to 100,000 ranks takes, without MPI's communicators and without messages.
"""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter

import torch
from mpi4py import MPI
from timing import slowest

from distdl import Partition, _core
from distdl.nn import HaloExchange
from distdl.partitions import comparison
from distdl.partitions.comparison import compare
from distdl.partitions.grid import Grid

EMULATED = (2, 20, 128, 1_000, 100_000)
REPEATS = 20
CALLS = 100


class Memory(ctypes.Structure):
    """The report of malloc on itself (struct mallinfo2 of the GNU C library)."""

    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]


def allocated() -> int:
    """The bytes that malloc has handed out."""
    gc.collect()
    report = ctypes.CDLL(None).mallinfo2
    report.restype = Memory
    now = report()
    return int(now.field7 + now.field4)


def cost(make: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Seconds and bytes of making one more of what is kept."""
    kept, times = [make()], []
    before = allocated()
    for _ in range(repeats):
        start = perf_counter()
        kept.append(make())
        times.append(perf_counter() - start)
    return median(times), (allocated() - before) / repeats


def emulated() -> None:
    """Print what this process alone can count."""
    print(f"{'ranks':>8} {'partition, us':>14} {'kB':>6} {'comparing, us':>14} {'operator, us':>13} {'kB':>6}")
    for ranks in EMULATED:
        world = replace(Grid.imagined(ranks), me=0)
        shape = [ranks // 10, 10] if ranks % 10 == 0 else [ranks]
        partition = cost(lambda world=world, shape=shape: (grid := world.reshaped(shape), grid.workers, grid.rank))
        grid = world.reshaped(shape)
        Grid.host_exchange = lambda _: None
        comparison.differing_views = lambda call, exchange, view, error: view.to_json() and None
        comparing = cost(lambda grid=grid: compare("Layer", "Layer", grid, None, {"P_x": grid}, {}))
        halos, periodic = [[[1, 1]] * len(shape)] * ranks, [False] * len(shape)
        operator = cost(
            lambda grid=grid, halos=halos, wraps=periodic: _core.HaloExchange(None, grid.workers, halos, wraps, 0.0)
        )
        print(
            f"{ranks:8,} {1e6 * partition[0]:14.0f} {partition[1] / 1000:6.1f} {1e6 * comparing[0]:14.0f} "
            f"{1e6 * operator[0]:13.0f} {operator[1] / 1000:6.1f}"
        )


def measured(P: Partition) -> None:
    """Print what the ranks of this job take, the slowest of them."""
    P_x = P.create_cartesian_topology_partition([P.size])
    short, long = torch.randn(64), torch.randn(66)
    kept: list[HaloExchange] = []

    def first_call() -> None:
        kept.append(HaloExchange(P_x, [1]))
        kept[-1](short)

    def change() -> None:
        changes = kept[-1]
        changes(long)
        changes(short)

    first = slowest(first_call, 1)
    before = allocated()
    later = slowest(first_call, REPEATS)
    memory = P_x.comm.allreduce((allocated() - before) / REPEATS, MPI.MAX)
    call = slowest(lambda: kept[-1](short), CALLS)
    changed = slowest(change, REPEATS) / 2
    if P.rank == 0:
        print(
            f"{P.size} ranks, microseconds: the first operator and its call {1e6 * first:.0f}, a further one "
            f"{1e6 * later:.0f}, a call {1e6 * call:.0f}, a call with a change of structure {1e6 * changed:.0f}; "
            f"{memory / 1000:.1f} kB for each operator"
        )


def main() -> None:
    """Print what this job can tell."""
    torch.set_num_threads(1)
    P = Partition()
    if math.prod(P.shape) == 1:
        emulated()
    else:
        measured(P)


if __name__ == "__main__":
    main()
