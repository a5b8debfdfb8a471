"""Times halo exchanges beside what any library takes that checks a call and returns a new tensor, and beside autograd.

mpiexec -n 2 python -m mpi4py benchmarks/halo_limits.py
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from contestants import Contestant, MPIByHand, distdl_adjoint, distdl_forward
from entries import ENTRIES, Entry
from mpi4py import MPI
from timing import measure

from distdl import Partition

SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20}
CALLS = 20  # of a turn


def contestants(entry: Entry, size: int, comm: MPI.Intracomm) -> dict[str, Contestant]:
    """Calls and exchanges of tensors with so many bytes on a rank."""
    case = entry.make(Partition(), size // torch.float32.itemsize)
    layer, x = case.construct(), case.x.detach()
    y = layer(case.x)
    gradient = torch.randn_like(y)
    by_hand = MPIByHand(comm)
    exchange = case.forward(by_hand)(x, torch.zeros_like(y))
    peer, vote, votes = 1 - comm.rank, np.zeros(64, np.uint8), np.zeros(64, np.uint8)

    def checked() -> torch.Tensor:
        comm.Sendrecv(vote, peer, recvbuf=votes, source=peer)
        exchange.run()
        return torch.empty_like(y)

    leaf = x.clone().requires_grad_()
    copy, of_copy = leaf.clone(), torch.randn_like(x)
    return {
        "call": distdl_forward(layer, x, True),
        "without vote": distdl_forward(layer, x, False),
        "MPI": exchange,
        "MPI, vote, new tensor": Contestant("checked", checked),
        "adjoint": distdl_adjoint(y, case.x, gradient, True),
        "MPI, adjoint": case.adjoint(by_hand)(gradient, torch.zeros_like(x)),
        "autograd of clone": distdl_adjoint(copy, leaf, of_copy, True),
    }


def main() -> None:
    """Print the medians in microseconds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="for all rows, about (default: %(default)s)")
    seconds, comm = parser.parse_args().seconds, MPI.COMM_WORLD
    torch.set_num_threads(1)
    entries = [entry for entry in ENTRIES if entry.name.startswith("HaloExchange-") and entry.moves]
    for i, (entry, (text, size)) in enumerate((entry, named) for entry in entries for named in SIZES.items()):
        timed = contestants(entry, size, comm)
        share = seconds / len(entries) / len(SIZES)
        medians = 1e6 * np.median(measure([*timed.values()], comm, 1000, share, CALLS), axis=1)
        if comm.rank == 0:
            if i == 0:
                print(f"{'medians, in us':28}", *(f"{name:>22}" for name in timed))
            print(f"{entry.name + ', ' + text:28}", *(f"{median:22.1f}" for median in medians), flush=True)


if __name__ == "__main__":
    main()
