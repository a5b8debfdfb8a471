"""The trials behind the limits in limits.py: other ways to do the same, and what a call is made of. See README.md.

mpiexec -n 2 python -m mpi4py benchmarks/trials.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from cases import first_alone, on
from contestants import ROOT, Contestant
from mpi4py import MPI
from report import Row, machine, save, size_from
from timing import measure

import distdl
from distdl import Partition, nn

SIZES = (1 << 20, 1 << 24, 1 << 26)
BYTES_OF_A_TURN, MOST_CALLS = 8 << 20, 20
LINE = "{:12} {:>8}  {:44} {:>12}"

Way = Callable[[], object]


class Empty(torch.nn.Module):
    """A layer that does nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input."""
        return x


def call(comm: MPI.Intracomm, size: int) -> dict[str, Way]:
    """What a call and its backward pass are made of. The parts of one rank alone need nobody else."""
    world = Partition()
    alone = first_alone(world)
    own, both = nn.Broadcast(alone, alone), nn.Broadcast(alone, world)
    x, y_both = on(alone, size // 4), None
    y_both, y_own, copy, empty = both(x), own(x), x.clone(), Empty()
    of_copy, of_own, of_both = (torch.ones_like(y) for y in (copy, y_own, y_both))
    plain = x.detach()

    def unchecked() -> None:
        with distdl.structure_check(False):
            both(plain)

    def grad(y: torch.Tensor, gradient: torch.Tensor) -> Way:
        return lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)

    return {
        "torch.clone": plain.clone,
        "a torch.nn.Module that does nothing": lambda: empty(plain),
        "Broadcast to oneself": lambda: own(plain),
        "Broadcast": lambda: both(plain),
        "Broadcast, unchecked": unchecked,
        "MPI_Barrier": comm.Barrier,
        "backward pass of torch.clone": grad(copy, of_copy),
        "backward pass of Broadcast to oneself": grad(y_own, of_own),
        "backward pass of Broadcast": grad(y_both, of_both),
    }


def broadcast(comm: MPI.Intracomm, size: int) -> dict[str, Way]:
    """The root's copy, which MPI's Bcast does not make, at different times.

    NumPy asks for huge pages, as our pool does, and torch does not.
    """
    x = torch.ones(size // 4).numpy()
    x_huge, y, copy = (np.ones(size // 4, np.float32) for _ in range(3))
    is_root = comm.rank == ROOT
    buffer = x if is_root else y

    def copy_at_root() -> None:
        if is_root:
            np.copyto(copy, x)

    def meanwhile() -> None:
        request = comm.Ibcast(buffer, ROOT)
        copy_at_root()
        request.Wait()

    def by_message() -> None:
        if is_root:
            request = comm.Isend(x, 1 - ROOT)
            copy_at_root()
            request.Wait()
        else:
            comm.Recv(y, ROOT)

    def of_the_copy(block: int) -> None:
        parts = [slice(start, start + block // 4) for start in range(0, size // 4, block // 4)]
        requests = []
        for part in parts:
            if is_root:
                np.copyto(copy[part], x[part])
                requests.append(comm.Isend(copy[part], 1 - ROOT))
            else:
                requests.append(comm.Irecv(y[part], ROOT))
        MPI.Request.Waitall(requests)

    return {
        "MPI_Bcast without the root's copy": lambda: comm.Bcast(buffer, ROOT),
        "the same from huge pages": lambda: comm.Bcast(x_huge if is_root else y, ROOT),
        "the root copies before": lambda: (copy_at_root(), comm.Bcast(buffer, ROOT)),
        "the root copies afterwards": lambda: (comm.Bcast(buffer, ROOT), copy_at_root()),
        "the root copies during MPI_Ibcast": meanwhile,
        "the root copies during MPI_Isend": by_message,
        "the root copies, then sends it, by 256 KiB": lambda: of_the_copy(1 << 18),
        "the root copies, then sends it, by 1 MiB": lambda: of_the_copy(1 << 20),
        "the root copies, then sends it, by 4 MiB": lambda: of_the_copy(1 << 22),
    }


def all_sum(comm: MPI.Intracomm, size: int) -> dict[str, Way]:
    """What a sum of two vectors for both takes at least: to see the other's vector, or half of it twice."""
    x, y, other = (np.ones(size // 4, np.float32) for _ in range(3))
    peer, half = 1 - comm.rank, size // 8
    mine, theirs = (slice(half * rank, half * (rank + 1)) for rank in (comm.rank, peer))

    def whole() -> None:
        comm.Sendrecv(x, peer, recvbuf=other, source=peer)
        np.add(x, other, out=y)

    def halves() -> None:
        comm.Sendrecv(x[theirs], peer, recvbuf=other[mine], source=peer)
        np.add(x[mine], other[mine], out=y[mine])
        comm.Sendrecv(y[mine], peer, recvbuf=y[theirs], source=peer)

    return {
        "MPI_Allreduce": lambda: comm.Allreduce(x, y),
        "MPI_Sendrecv of the vector, no sum": lambda: comm.Sendrecv(x, peer, recvbuf=other, source=peer),
        "MPI_Sendrecv of the vector, then the sum": whole,
        "half of the sum each, then exchanged": halves,
    }


def overlap(comm: MPI.Intracomm, size: int) -> dict[str, Way]:
    """Matrix products while a Broadcast travels, with and without somebody who looks after the messages."""
    x, y = np.ones(size // 4, np.float32), np.zeros(size // 4, np.float32)
    buffer = x if comm.rank == ROOT else y
    alone = first_alone(Partition())
    layer, tensor = nn.Broadcast(alone, Partition()), on(alone, size // 4).detach()
    a = torch.linalg.qr(torch.randn(256, 256)).Q

    def seconds(way: Way) -> float:
        times = measure([Contestant("", way)], comm, 7, 1.0, 1)  # type: ignore[arg-type]
        return float(np.median(times))

    def products(number: int, look: Way = lambda: None) -> None:
        for _ in range(number):
            torch.mm(a, a)
            look()

    def communicate() -> None:
        comm.Bcast(buffer, ROOT)

    # As much to compute as there is to communicate.
    number = max(1, round(100 * comm.bcast(seconds(communicate)) / comm.bcast(seconds(lambda: products(100)))))

    def without_looks() -> None:
        request = comm.Ibcast(buffer, ROOT)
        products(number)
        request.Wait()

    def with_looks() -> None:
        request = comm.Ibcast(buffer, ROOT)
        products(number, request.Test)
        request.Wait()

    def started() -> None:
        token = layer.start(tensor)
        products(number)
        layer.wait(token)

    return {
        "MPI_Bcast": communicate,
        "matrix products": lambda: products(number),
        "products between MPI_Ibcast and MPI_Wait": without_looks,
        "the same, with MPI_Test after each product": with_looks,
        "products between start and wait": started,
    }


def main() -> None:
    """Time each trial's ways in turns."""
    comm = MPI.COMM_WORLD
    options = arguments()
    if comm.size != 2:
        raise SystemExit(f"two ranks are needed, these are {comm.size}: mpiexec -n 2 python -m mpi4py {sys.argv[0]}")
    torch.set_num_threads(1)
    rows: list[Row] = []
    trials = [("call", call, 1 << 10)]
    trials += [(one.__name__, one, size) for one in (broadcast, all_sum) for size in SIZES]
    trials += [("overlap", overlap, options.overlap)]
    if options.only:
        trials = [trial for trial in trials if trial[0] in options.only]
    for name, make, size in trials:
        rows += timed(name, make(comm, size), size, options.seconds, comm)
    if comm.rank == 0 and options.json:
        save({"machine": machine(), "trials": rows}, options.json)


def timed(name: str, ways: dict[str, Way], size: int, seconds: float, comm: MPI.Intracomm) -> Sequence[Row]:
    """Median microseconds on the slower rank, printed."""
    calls = min(max(BYTES_OF_A_TURN // size, 1), MOST_CALLS)
    contestants = [Contestant(way, run) for way, run in ways.items()]  # type: ignore[arg-type]
    medians = np.median(measure(contestants, comm, 1000, seconds, calls), axis=1)
    rows = []
    for way, median in zip(ways, medians.tolist(), strict=True):
        rows.append({"trial": name, "bytes": size, "way": way, "median": median})
        if comm.rank == 0:
            print(LINE.format(name, f"{size >> 10} KiB", way, f"{1e6 * median:,.1f} us"), flush=True)
    return rows


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="for each trial and size (default: %(default)s)")
    parser.add_argument("--overlap", type=size_from, default=16 << 20, metavar="SIZE", help="bytes (default: 16M)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of call, broadcast, all_sum, overlap")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
