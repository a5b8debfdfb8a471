"""Makes every call to MPI that distdl makes. tests/pmpi/faults.py lets one of them fail.

With an argument, the program catches what is raised then, finds out that distdl says it again, and comes to its end.
"""

import sys
import time

import torch
from mpi4py import MPI

import distdl
import distdl.data
import distdl.nn as dnn


def primitives(P, P_0, P_grid, n):
    """Each with the shape of its input, of about n elements."""
    return (
        (dnn.Broadcast(P_0, P), [n] if P_0.active else [0]),
        (dnn.SumReduce(P, P_0), [n]),
        (dnn.AllSumReduce(P, [0]), [n]),
        (dnn.AllGather(P, [0]), [n]),
        (dnn.ReduceScatter(P, [0]), [n]),
        (dnn.Repartition(P_grid, P_grid.create_cartesian_topology_partition([1, P.size])), [n // 4, 4]),
        (dnn.HaloExchange(P, 1), [n]),
    )


def work():
    """On a communicator that is freed in the end, so that all calls have been made before MPI is finalized."""
    comm = MPI.COMM_WORLD.Dup()
    P = distdl.Partition(comm)
    P_0 = P.create_partition_inclusive([0])
    P_grid = P.create_cartesian_topology_partition([P.size, 1])
    for n in (8, 1 << 12, 1 << 17):  # sums of few and of many elements go other ways
        for layer, shape in primitives(P, P_0, P_grid, n):
            x = torch.ones(shape, requires_grad=True)
            layer(x).sum().backward()
            started = layer.start(x)
            time.sleep(0.002)  # so that the progress thread has time to look for messages
            layer.wait(started).sum().backward()
        distdl.data.write_block(torch.empty(n * P.size) if P.rank == 0 else None, P, torch.ones(n), root=0)
    dnn.SumReduce(P, P_0)(torch.ones(1 << 14, dtype=torch.int8))  # by an operation of our own
    gather = dnn.AllGather(P, [0])
    for n in (8, 8, 8 + P.rank):  # rank 0 sends early on several hosts, and the other ranks do not: its data is dropped
        gather(torch.ones(n))
    P.print_sequential(f"data {P.allgather_data(P.rank)} {P.allreduce_data(1)} {P_grid.comm.size}")
    print(f"rank {P.rank} frees its communicator", flush=True)
    comm.Free()


def main():
    """Raises what is not caught."""
    print(f"rank {MPI.COMM_WORLD.rank} has imported distdl", flush=True)
    try:
        work()
    except distdl.MPIError as error:
        if len(sys.argv) == 1:
            raise
        print(f"caught {type(error).__name__}: {error}", flush=True)
        for _ in range(2):
            try:
                distdl.Partition().allgather_data(1)
            except distdl.MPIError as again:
                print(f"refused {again == error or str(again) == str(error)}", flush=True)


main()
