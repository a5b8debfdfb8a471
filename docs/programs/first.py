import torch

import distdl
from distdl.nn import DistributedConv2d, DistributedMSELoss, Repartition

P_world = distdl.Partition()
P_root = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1, 1, 1])
P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1])

torch.manual_seed(0)
conv = DistributedConv2d(P_x, in_channels=1, out_channels=2, kernel_size=3, padding=1)
scatter = Repartition(P_root, P_x)
loss_of = DistributedMSELoss(P_x)
optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)

# Rank 0 has the data; every rank receives its rows.
images, targets = distdl.zero_volume_tensor(), distdl.zero_volume_tensor()
if P_root.active:
    images, targets = torch.rand(4, 1, 10, 8), torch.rand(4, 2, 10, 8)
x, target = scatter(images), scatter(targets)
P_world.print_sequential(f"rank {P_world.rank}: x {tuple(x.shape)}, weight {tuple(conv.weight.shape)}")

for step in range(3):
    optimizer.zero_grad()
    loss = loss_of(conv(x), target)
    loss.backward()
    optimizer.step()
    if P_world.rank == 0:
        print(f"step {step}: loss {loss.item():.4f}")
