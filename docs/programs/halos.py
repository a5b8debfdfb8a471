import torch

import distdl

world = distdl.Partition()
P_0 = world.create_partition_inclusive([0])
P_x = world.create_cartesian_topology_partition([world.size])
scatter = distdl.nn.Repartition(P_0, P_x)
one_each = distdl.nn.HaloExchange(P_x, 1)
periodic = distdl.nn.HaloExchange(P_x, [(4, 0)], periodic=True)

whole = torch.arange(11) if world.rank == 0 else distdl.zero_volume_tensor()
x = scatter(whole)
blocks = f"{x.tolist()} {one_each(x).tolist()} {periodic(x).tolist()}"
world.print_sequential(f"rank {world.rank}: {blocks}")
