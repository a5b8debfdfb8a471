"""Shows where a step of training goes: of one process with one thread, and of each of two ranks.

mpiexec -n 2 python -m mpi4py benchmarks/phases.py

Networks are split in space or along the sequence, with parameters on both ranks. Milliseconds of a step with Adam in
float32, by torch.profiler, which makes steps a little slower. Of one process half is shown, the ideal of two ranks. The
waiting of ranks for each other is what distdl.comm_stats counts.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

import torch
from alternative_ways import Way, ways
from alternatives import step_of
from contestants import ROOT
from mpi4py import MPI
from torch.profiler import ProfilerActivity, profile
from trained_networks import MeanSquare, Network, chosen

import distdl

STEPS = 3
PRODUCTS = ("conv", "mm", "attention", "fft", "linear", "dot", "einsum", "matmul")
NORMS = ("norm", "moments")
COPIES = ("copy_", "cat", "clone", "pad", "fill_", "zero_", "stack", "roll", "index", "slice_backward", "unfold")
PHASES = ("convolutions and products", "norms", "other arithmetic", "copies", "optimizer", "parameters: messages",
          "parameters: waiting", "other layers: messages", "other layers: waiting", "Python and autograd")  # fmt: skip


def is_of_parameters(operator: str) -> bool:
    """Whether an operator sums gradients of parameters; in other layouts it would be one that layers use as well."""
    return operator.startswith("Replicate")


def phase_of(event: Any, operators: Iterable[str]) -> str:
    """The phase of the time that an event of the profiler takes itself."""
    around = event
    while around is not None:
        if around.name.startswith("Optimizer.step"):
            return "optimizer"
        around = around.cpu_parent
    space, _, name = event.name.partition("::")
    if space == "distdl" and any(name.startswith(operator) for operator in operators):
        return "parameters: messages" if is_of_parameters(name) else "other layers: messages"
    if space not in ("aten", "distdl", "mkldnn"):
        return "Python and autograd"
    for phase, parts in (("norms", NORMS), ("convolutions and products", PRODUCTS), ("copies", COPIES)):
        if any(part in name for part in parts):
            return phase
    return "other arithmetic"


def milliseconds(step: Callable[[], object]) -> Counter[str]:
    """Of a step by phase, and together."""
    step(), step()
    distdl.reset_comm_stats()
    MPI.COMM_WORLD.Barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        start = perf_counter()
        for _ in range(STEPS):
            step()
        total = 1e3 * (perf_counter() - start)
    stats, sums = distdl.comm_stats(), Counter[str]()
    for event in profiler.events() or ():
        sums[phase_of(event, stats)] += event.self_cpu_time_total / 1e3
    for operator, each in stats.items():
        group = "parameters" if is_of_parameters(operator) else "other layers"
        sums[f"{group}: waiting"] += 1e3 * each.seconds_waited
        sums[f"{group}: messages"] -= 1e3 * each.seconds_waited
    sums["Python and autograd"] = total - sum(time for phase, time in sums.items() if phase != "Python and autograd")
    return Counter({phase: time / STEPS for phase, time in (sums | {"together": total}).items()})


def measured(way: Way, comm: MPI.Intracomm) -> list[Counter[str]]:
    """Milliseconds by phase of each rank."""
    with way.setting():
        mine = milliseconds(step_of(way))
    return comm.allgather(mine)


def table_of(network: Network, comm: MPI.Intracomm) -> list[tuple[str, float, float, float]]:
    """For each phase the half of one process's time, and that of both ranks."""
    torch.manual_seed(0)
    original, x = MeanSquare(network.make()), network.x()
    made = ways(network.dim, comm, "replicated")
    one = measured(made["torch.nn, 1 thread"](copy.deepcopy(original), x), comm)[ROOT]
    first, second = measured(made["distdl, space or sequence in two"](original, x), comm)
    return [(phase, one[phase] / 2, first[phase], second[phase]) for phase in (*PHASES, "together")]


def main() -> None:
    """Print a table for each network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="the small networks of alternatives.py")
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose names have it")
    options = parser.parse_args()
    comm, show = MPI.COMM_WORLD, partial(print, flush=True)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    for network in chosen(not options.small, options.only):
        rows = table_of(network, comm)
        if comm.rank == ROOT:
            show(f"{network.name:44}{'one / 2':>9}{'rank 0':>9}{'rank 1':>9}")
            for phase, *times in rows:
                show(f"  {phase:42}" + "".join(f"{time:9.1f}" for time in times))


if __name__ == "__main__":
    main()
