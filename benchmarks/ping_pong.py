"""What a wire between two ranks can do: the time of an empty message, and the rate of a large one.

mpiexec -n 2 python -m mpi4py benchmarks/ping_pong.py
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI


def ping_pong(comm: MPI.Comm, bytes: int, repeats: int) -> float:
    """Seconds from one rank to the other: half of the median round trip."""
    message = np.zeros(bytes, np.uint8)
    peer = 1 - comm.rank
    times = []
    for _ in range(repeats):
        comm.Barrier()
        start = perf_counter()
        if comm.rank == 0:
            comm.Send(message, peer)
            comm.Recv(message, peer)
        else:
            comm.Recv(message, peer)
            comm.Send(message, peer)
        times.append(perf_counter() - start)
    return median(times) / 2


def main() -> None:
    """Print both."""
    comm = MPI.COMM_WORLD
    ping_pong(comm, 1 << 20, 2)  # connects
    delay, large = ping_pong(comm, 0, 20), ping_pong(comm, 32 << 20, 3)
    if comm.rank == 0:
        print(f"empty message: {1000 * delay:.3f} ms one way")
        print(f"32 MiB: {8e-9 * (32 << 20) / (large - delay):.3f} Gbit/s")


if __name__ == "__main__":
    main()
