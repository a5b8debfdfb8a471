"""Times attention over a split sequence beside torch's on one thread, and measures the memory that a rank needs.

OMP_NUM_THREADS=1 mpiexec -n 2 python -m mpi4py benchmarks/attention.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from contestants import ROOT, Contestant
from mpi4py import MPI
from peak import growth
from report import Row, machine, save
from timing import measure
from torch import Tensor

import distdl
from distdl import Partition, nn

HEADS, FEATURES = 8, 64
TIMED, MEASURED = 2048, 8192  # tokens
FASTER = 1.7  # on two ranks
MEMORY = {2: 0.65, 4: 0.4}  # of the sequential's, by the number of ranks
METHODS = ("heads", "ring")


def tokens(number: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of so many tokens."""
    return tuple(torch.randn(1, HEADS, number, FEATURES, requires_grad=True) for _ in range(3))


def both(attention: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """A forward and a backward pass."""
    gradient = torch.ones_like(inputs[0])
    return lambda: torch.autograd.grad(attention(*inputs), inputs, gradient)


def blocks(comm: MPI.Intracomm, number: int) -> tuple[Tensor, ...]:
    """This rank's tokens."""
    return tokens(len(range(number)[comm.rank :: comm.size]))


def layer(P: Partition, method: str, is_causal: bool) -> torch.nn.Module:
    """Attention with the sequence split over all workers."""
    P_x = P.create_cartesian_topology_partition([1, 1, P.size, 1])
    return nn.DistributedScaledDotProductAttention(P_x, is_causal=is_causal, method=method)


def timed(comm: MPI.Intracomm, seconds: float) -> Iterator[Row]:
    """A row for each method, with and without a causal mask."""
    for is_causal in (False, True):
        whole = tokens(TIMED)

        def sequential(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = is_causal) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        run = both(sequential, whole) if comm.rank == ROOT else int
        ours = [both(layer(Partition(comm), method, is_causal), blocks(comm, TIMED)) for method in METHODS]
        contestants = [Contestant(*pair) for pair in zip(("torch", *METHODS), (run, *ours), strict=True)]
        alone, *medians = np.median(measure(contestants, comm, 30, seconds, 1), axis=1).tolist()
        for method, median in zip(METHODS, medians, strict=True):
            row: Row = {"method": method, "causal": is_causal, "torch": alone, "ours": median, "faster": alone / median}
            if comm.size == 2 and not is_causal:
                row |= {"goal": FASTER, "met": alone / median >= FASTER}
            yield row


def remembered(comm: MPI.Intracomm) -> Iterator[Row]:
    """The memory of a forward and a backward pass with its tensors: the growth of the rank that needs most."""
    alone = 0
    if comm.rank == ROOT:
        alone, _ = growth(lambda: both(F.scaled_dot_product_attention, tokens(MEASURED))())
    alone = comm.bcast(alone, ROOT)
    for method in METHODS:
        attention = layer(Partition(comm), method, False)
        both(attention, blocks(comm, 64))()  # connects the ranks
        distdl.memory.empty_pool()
        comm.Barrier()
        grown, _ = growth(lambda attention=attention: both(attention, blocks(comm, MEASURED))())
        share = max(comm.allgather(grown)) / alone
        row: Row = {"method": method, "torch": alone, "share": share}
        if comm.size in MEMORY:
            row |= {"goal": MEMORY[comm.size], "met": share <= MEMORY[comm.size]}
        yield row


def line(row: Row) -> str:
    """A row of the table."""
    goal = f"  goal {row['goal']}{'' if row['met'] else ': not met'}" if "goal" in row else ""
    if "share" in row:
        return f"memory  {row['method']:6} {row['torch'] / (1 << 20):8.1f} MiB {row['share']:7.2f}{goal}"
    kind = "causal" if row["causal"] else ""
    return f"time    {row['method']:6} {1e3 * row['torch']:8.1f} ms {row['faster']:8.2f} {kind:6}{goal}"


def main() -> None:
    """Print each row as soon as it is known, write all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for the times, about (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    rows = []
    parts = [remembered(comm), timed(comm, options.seconds / 2)] if options.seconds else [remembered(comm)]
    for part in parts:
        for row in part:
            rows.append(row)
            if comm.rank == ROOT:
                print(line(row), flush=True)
    if comm.rank == ROOT and options.json:
        save({"machine": machine(), "attention": rows}, options.json)


if __name__ == "__main__":
    main()
