import torch

import distdl

world = distdl.Partition()
P_x = world.create_partition_inclusive([0])
P_y = world.create_partition_inclusive([0, 1])
broadcast = distdl.nn.Broadcast(P_x, P_y)

x = torch.ones(2, 3) if P_x.active else distdl.zero_volume_tensor()
y = broadcast(x)
world.print_sequential(f"rank {world.rank}: {list(x.shape)} -> {list(y.shape)}")
