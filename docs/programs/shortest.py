import torch

import distdl

P = distdl.Partition()  # all ranks
P_x = P.create_cartesian_topology_partition([1, 1, P.size, 1])  # split the rows of an image

conv = distdl.nn.DistributedConv2d(P_x, in_channels=3, out_channels=8, kernel_size=3, padding=1)
x = torch.rand(1, 3, 32 // P.size, 32)  # this rank's rows
y = conv(x)

P.print_sequential(f"rank {P.rank}: {tuple(x.shape)} -> {tuple(y.shape)}")
