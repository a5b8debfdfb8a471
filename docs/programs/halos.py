import torch

import distdl

P_world = distdl.Partition()
P_x = P_world.create_cartesian_topology_partition([P_world.size])
scatter = distdl.nn.Repartition(P_world.create_partition_inclusive([0]), P_x)

x = scatter(torch.arange(11.0) if P_world.rank == 0 else distdl.zero_volume_tensor())
one_each = distdl.nn.HaloExchange(P_x, 1)(x)
wide = distdl.nn.HaloExchange(P_x, [(4, 0)], periodic=True)(x)
P_world.print_sequential(f"rank {P_world.rank}: {x.int().tolist()} {one_each.int().tolist()} {wide.int().tolist()}")
