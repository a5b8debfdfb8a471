"""What messages and layers cost on GPUs, beside the bus and torch.nn: tests/gpu.sh runs it.

    mpiexec -n 2 python -m mpi4py benchmarks/gpu.py [--mib 64] [--repeats 10] [--only messages]

Each rank uses distdl.local_device(), which two ranks may share. Where there is none, it runs on the CPU; or on the
device of the tests, with DISTDL_TEST_DEVICE=lagging, and a bus as fast as DISTDL_TEST_DEVICE_BANDWIDTH says.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from mpi4py import MPI
from timing import slowest

import distdl
import distdl.nn as dnn

comm = MPI.COMM_WORLD
Step = Callable[[], object]


def main() -> None:
    """Print a table of milliseconds, each the median on the slowest rank."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=64, help="of a message (default: %(default)s)")
    parser.add_argument("--size", type=int, default=64, help="the side of a volume (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", choices=["messages", "layers"])
    options = parser.parse_args()
    if comm.size % 2:
        raise SystemExit(f"an even number of ranks is needed, these are {comm.size}")
    torch.manual_seed(0)
    if os.environ.get("DISTDL_TEST_DEVICE") == "lagging":
        sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
        importlib.import_module("support.lagging").load()
    device = distdl.local_device()
    rows: dict[str, str] = {}
    if options.only != "layers":
        rows |= messages(device, options.mib << 20, options.repeats)
    if options.only != "messages":
        rows |= layers(device, options.size, options.repeats)
    if comm.rank == 0:
        print(f"{comm.size} ranks, rank 0 on {device}, messages of {options.mib} MiB, volumes of {options.size} cubed")
        width = max(map(len, rows))
        print("\n".join(f"{name:{width}} {text}" for name, text in rows.items()), flush=True)


def messages(device: torch.device, nbytes: int, repeats: int) -> dict[str, str]:
    """A message to another rank and one from it, beside what it passes: the bus both ways, and MPI between hosts."""
    other = comm.rank ^ 1
    on_device = torch.ones(nbytes // 4, device=device)
    on_host = torch.ones(nbytes // 4, pin_memory=device.type != "cpu")
    received = torch.empty_like(on_host)
    P_world = distdl.Partition()
    rotated = P_world.create_partition_inclusive([*range(1, comm.size), 0])
    shape = [comm.size]
    P_x = P_world.create_cartesian_topology_partition(shape)
    exchange = dnn.Repartition(P_x, rotated.create_cartesian_topology_partition(shape))
    P_first = P_world.create_cartesian_topology_partition([1])
    of_first = on_device if P_first.active else distdl.zero_volume_tensor(device=device)
    operators = {
        "Repartition": partial(exchange, on_device),
        "Broadcast": partial(dnn.Broadcast(P_first, P_x), of_first),
        "AllSumReduce": partial(dnn.AllSumReduce(P_x, axes_reduce=[0]), on_device),
    }
    weight = torch.ones(2048, 2048, device=device)

    def compute() -> None:
        for _ in range(10):
            weight @ weight

    def overlapped() -> None:
        started = exchange.start(on_device)
        compute()
        exchange.wait(started)

    seconds = {
        "device to host": median(lambda: on_host.copy_(on_device, non_blocking=True), device, repeats),
        "MPI between hosts": median(
            lambda: comm.Sendrecv(on_host.numpy(), other, recvbuf=received.numpy(), source=other), device, repeats
        ),
        "host to device": median(lambda: on_device.copy_(on_host, non_blocking=True), device, repeats),
        **{name: median(operator, device, repeats) for name, operator in operators.items()},
        "products of matrices": median(compute, device, repeats),
        "Repartition from start to wait, with products between": median(overlapped, device, repeats),
    }
    rows = {name: f"{1e3 * time:9.2f} ms  {nbytes / time / 1e9:7.1f} GB/s" for name, time in seconds.items()}
    for name in ("products of matrices", "Repartition from start to wait, with products between"):
        rows[name] = f"{1e3 * seconds[name]:9.2f} ms"
    bound = max(seconds[name] for name in ("device to host", "MPI between hosts", "host to device"))
    for name in operators:
        rows[name] += f", {seconds[name] / bound:.2f} of the slowest of the three"
    return rows


def layers(device: torch.device, side: int, repeats: int) -> dict[str, str]:
    """Forward and backward passes of layers on blocks of rows, beside torch.nn's on a block of the same size."""
    P_x = distdl.Partition().create_cartesian_topology_partition([1, 1, comm.size, 1, 1])
    P_rows = distdl.Partition().create_cartesian_topology_partition([comm.size, 1])
    P_features = distdl.Partition().create_cartesian_topology_partition([1, comm.size])
    P_first = distdl.Partition().create_cartesian_topology_partition([1, 1])
    volume = torch.ones(1, 16, max(1, side // comm.size), side, side, device=device)
    rows = torch.ones(1024, 1024, device=device)
    cases: dict[str, tuple[torch.nn.Module, torch.nn.Module, torch.Tensor]] = {
        "Conv3d, halos": (
            dnn.DistributedConv3d(P_x, 16, 16, 3, padding=1), torch.nn.Conv3d(16, 16, 3, padding=1), volume),
        "GroupNorm": (dnn.DistributedGroupNorm(P_x, 4, 16), torch.nn.GroupNorm(4, 16), volume),
        "MaxPool3d": (dnn.DistributedMaxPool3d(P_x, 2), torch.nn.MaxPool3d(2), volume),
        "Linear, features": (
            dnn.DistributedLinear(P_features, P_first, P_features, 1024 * comm.size, 1024),
            torch.nn.Linear(1024, 1024), rows),
        "LayerNorm, rows": (dnn.DistributedLayerNorm(P_rows, 1024), torch.nn.LayerNorm(1024), rows),
    }  # fmt: skip
    table = {}
    for name, (ours, alone, x) in cases.items():
        ours, alone = ours.to(device), alone.to(device)
        times = [median(lambda model=model, x=x: passes(model, x), device, repeats) for model in (ours, alone)]
        table[name] = f"{1e3 * times[0]:9.2f} ms, torch.nn {1e3 * times[1]:8.2f} ms"
    return table


def passes(model: torch.nn.Module, x: torch.Tensor) -> None:
    """A forward and a backward pass."""
    model.zero_grad()
    y = model(x.detach().requires_grad_())
    y.backward(torch.ones_like(y))


def median(step: Step, device: torch.device, repeats: int) -> float:
    """The median of the seconds of a step, on the slowest rank."""
    return slowest(step, repeats, warm_up=3, finish=lambda: synchronize(device))


def synchronize(device: torch.device) -> None:
    """Wait for the work of a device."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


if __name__ == "__main__":
    main()
