import torch

import distdl

P = distdl.Partition()  # all ranks
P_rows = P.create_cartesian_topology_partition([1, 1, P.size, 1])

conv = distdl.nn.DistributedConv2d(P_rows, 3, 8, kernel_size=3, padding=1)
x = torch.rand(1, 3, 32 // P.size, 32)  # this rank's rows of an image
y = conv(x)

P.print_sequential(f"rank {P.rank}: {tuple(x.shape)} -> {tuple(y.shape)}")
