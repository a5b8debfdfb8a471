from collections.abc import Callable

import torch

import distdl
from distdl.nn import Broadcast, DistributedConv2d, DistributedLinear, Repartition, SumReduce

P_world = distdl.Partition()
rank = P_world.rank
P_root = P_world.create_partition_inclusive([0])
P_row, P_column = (P_world.create_cartesian_topology_partition(shape) for shape in ([1, 3], [3, 1]))
P_2x2 = P_world.create_cartesian_topology_partition([2, 2])
P_rows = P_world.create_cartesian_topology_partition([1, 1, 4, 1])
broadcast, repartition = Broadcast(P_root, P_world), Repartition(P_2x2, P_2x2)


def show(mistake: Callable[[], object]) -> None:
    try:
        mistake()
        caught = "no exception"
    except Exception as error:
        caught = f"{type(error).__name__}: {error}"
    (text,) = set(map(str, P_world.allgather_data(caught.replace(" (raised on rank 0)", ""))))  # the same on all ranks
    if rank == 0:
        print(text, end="\n\n")


# In constructing
show(lambda: SumReduce(P_row, P_column))
show(lambda: Repartition(P_root, P_2x2))
show(lambda: DistributedLinear(P_world, P_world, P_2x2, 4, 4))
show(lambda: DistributedConv2d(P_rows, 1, 2, kernel_size=5 if rank == 0 else 3))
# In calling
show(lambda: broadcast(torch.ones(2, 3)))
show(lambda: repartition(torch.ones(3 if rank == 3 else 2, 2)))
show(lambda: repartition(torch.ones(2, 2, dtype=torch.float64 if rank == 3 else torch.float32)))
show(lambda: repartition(None if rank == 2 else torch.ones(2, 2)))
# In the order of calls
x = torch.ones(2, 2)
another = Repartition(P_2x2, P_2x2)
show(lambda: another(x) if rank == 0 else repartition(x))
