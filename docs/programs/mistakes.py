import textwrap
from collections.abc import Callable

import torch

import distdl
from distdl import nn

world = distdl.Partition()
rank = world.rank
P_0 = world.create_partition_inclusive([0])
P_row = world.create_cartesian_topology_partition([1, 3])
P_column = world.create_cartesian_topology_partition([3, 1])
P_2x2 = world.create_cartesian_topology_partition([2, 2])
P_image = world.create_cartesian_topology_partition([1, 1, 4, 1])


def show(mistake: Callable[[], object]) -> None:
    caught = "no exception"
    try:
        mistake()
    except Exception as error:
        caught = f"{type(error).__name__}: {error}"
    # The same on all ranks, except for the rank that it names at the end.
    texts = {str(text).removesuffix(" (raised on rank 0)") for text in world.allgather_data(caught)}
    assert len(texts) == 1
    if rank == 0:
        print(textwrap.fill(caught, 80, subsequent_indent="    "), end="\n\n")


# In constructing
show(lambda: nn.SumReduce(P_row, P_column))
show(lambda: nn.Repartition(P_0, P_2x2))
show(lambda: nn.DistributedLinear(world, world, P_2x2, 4, 4))
show(lambda: nn.DistributedConv2d(P_image, 1, 2, kernel_size=5 if rank == 0 else 3))

# In calling
broadcast = nn.Broadcast(P_0, world)
repartition = nn.Repartition(P_2x2, P_2x2)
show(lambda: broadcast(torch.ones(2, 3)))
show(lambda: repartition(torch.ones(3 if rank == 3 else 2, 2)))
show(lambda: repartition(torch.ones(2, 2).to(torch.float64 if rank == 3 else torch.float32)))
show(lambda: repartition(None if rank == 2 else torch.ones(2, 2)))

# In the order of calls
another = nn.Repartition(P_2x2, P_2x2)
show(lambda: (another if rank == 0 else repartition)(torch.ones(2, 2)))
