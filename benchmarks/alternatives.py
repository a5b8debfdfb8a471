"""Times a training step on two ranks beside what else PyTorch offers for the same network, and compares gradients.

mpiexec -n 2 python -m mpi4py benchmarks/alternatives.py

Forward, backward and Adam in float32, with one thread a rank. *Kept* are the tensors that the forward pass leaves, and
*peak* is by how much a step lets the process grow, both in MiB on the rank that has most. *Gradients* are compared with
those of one process: the largest difference over the largest gradient. What does without distdl has torch's own
allocator. The last row is a bound: both ranks train on half of the batch at the same time, and exchange nothing.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from contestants import ROOT, Contestant, gloo
from convolution import alone
from mpi4py import MPI
from peak import growth
from report import Row, machine, save
from timing import measure
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.parallel import DistributedDataParallel
from trained_networks import MeanSquare, Network, chosen

import distdl

CALLS = 2  # of a turn, after one that is not timed: steps follow steps
HEADER = f"{'':40}{'ms':>9}{'/ 1 thread':>12}{'kept':>9}{'peak':>9}{'gradients':>12}"


@dataclass(frozen=True)
class Way:
    """How a network is trained on this rank.

    Attributes:
        model: the network with the loss, on this rank.
        x: its input on this rank.
        gradients: the whole gradients, by name, on the first rank at least.
        setting: around each step.
        computes: False if another rank computes alone.
    """

    model: torch.nn.Module
    x: Tensor
    gradients: Callable[[torch.nn.Module], dict[str, Tensor]]
    setting: Callable[[], AbstractContextManager[object]] = nullcontext
    computes: bool = True


@contextmanager
def memory_of_torch(setting: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """The setting, in which tensors are in memory of torch's own allocator."""
    limit = distdl.memory.pool_limit()
    with ExitStack() as stack:
        stack.callback(distdl.memory.set_pool_limit, limit)
        distdl.memory.set_pool_limit(0)
        stack.enter_context(setting())
        yield


def plain(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradients of a model whose parameters are wholes."""
    return {name.removeprefix("module."): p.grad for name, p in model.named_parameters() if p.grad is not None}


def of_dtensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradients of a model whose parameters are torch's DTensors."""
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in plain(model).items()}


def ways(network: Network, comm: MPI.Intracomm, layout: str) -> dict[str, Callable[[torch.nn.Module, Tensor], Way]]:
    """What makes each way, of a copy of the network and the whole input."""
    P = distdl.Partition(comm)

    def sequential(threads: int, model: torch.nn.Module, x: Tensor) -> Way:
        setting = partial(memory_of_torch, partial(alone, comm, threads))
        return Way(model, x, plain, setting, computes=comm.rank == ROOT)

    def ours(dim: int, model: torch.nn.Module, x: Tensor) -> Way:
        P_x = P.create_cartesian_topology_partition([comm.size if d == dim else 1 for d in range(x.dim())])
        block = x.chunk(comm.size, dim)[comm.rank].clone()
        with distdl.parameter_layout(layout):
            return Way(distdl.distribute(model, P_x), block, distdl.sequential_gradients)

    def ddp(model: torch.nn.Module, x: Tensor) -> Way:
        block = x.chunk(comm.size)[comm.rank].clone()
        return Way(DistributedDataParallel(model), block, plain, partial(memory_of_torch, nullcontext))

    def fsdp(model: torch.nn.Module, x: Tensor) -> Way:
        fully_shard(model, mesh=init_device_mesh("cpu", (comm.size,)))
        block = x.chunk(comm.size)[comm.rank].clone()
        return Way(model, block, of_dtensors, partial(memory_of_torch, nullcontext))

    def half(model: torch.nn.Module, x: Tensor) -> Way:
        return Way(model, x.chunk(comm.size)[comm.rank].clone(), lambda model: {})

    def dtensor(model: torch.nn.Module, x: Tensor) -> Way:
        mesh = init_device_mesh("cpu", (comm.size,))
        block = distribute_tensor(x, mesh, [Shard(network.dim)])
        setting = partial(memory_of_torch, implicit_replication)
        return Way(distribute_module(model, mesh), block, of_dtensors, setting)

    return {
        "torch.nn, 1 thread": partial(sequential, 1),
        "torch.nn, 2 threads": partial(sequential, 2),
        "distdl, space or sequence in two": partial(ours, network.dim),
        "distdl, batch in two": partial(ours, 0),
        "DTensor, space or sequence in two": dtensor,
        "DDP, batch in two": ddp,
        "FSDP2, batch in two": fsdp,
        "half of the batch each, no messages": half,
    }


def step_of(way: Way) -> Callable[[], Tensor]:
    """A step of training."""
    optimizer = torch.optim.Adam(way.model.parameters(), 1e-6, fused=True)

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


def rows_of(network: Network, comm: MPI.Intracomm, seconds: float, only: str, layout: str) -> Iterator[Row]:
    """A row for each way whose name has the text; one that raises says why."""
    torch.manual_seed(0)
    original, x = MeanSquare(network.make()), network.x()
    twin = copy.deepcopy(original)
    twin(x).backward()
    expected, runs, rows = plain(twin), list[Contestant](), list[Row]()
    for name, make in ways(network, comm, layout).items():
        if only not in name:
            continue
        problem, off, held = "", 0.0, 0
        try:
            way = make(copy.deepcopy(original), x)
            off = difference(way, expected)
            held = kept(way)
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
    yield from ({**row, "ratio": row["seconds"] / rows[0]["seconds"]} if "seconds" in row else row for row in rows)


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
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose names have it")
    parser.add_argument("--ways", default="", metavar="TEXT", help="ways whose names have it, such as distdl")
    parser.add_argument("--layout", default="replicated", help="of distdl's parameters: owner, sharded or replicated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    comm, rows = MPI.COMM_WORLD, list[Row]()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks are the parallelism
    if comm.rank == ROOT:
        print(HEADER, "-" * len(HEADER), sep="\n")
    with gloo(comm):
        for network in chosen(options.larger, options.only):
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
