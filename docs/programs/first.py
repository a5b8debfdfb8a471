import torch

import distdl
from distdl.nn import DistributedConv2d, DistributedMSELoss, Repartition

world = distdl.Partition()
P_0 = world.create_partition_inclusive([0])
P_root = P_0.create_cartesian_topology_partition([1, 1, 1, 1])
P_x = world.create_cartesian_topology_partition([1, 1, world.size, 1])

torch.manual_seed(0)
conv = DistributedConv2d(P_x, 1, 2, kernel_size=3, padding=1)
scatter = Repartition(P_root, P_x)
loss_of = DistributedMSELoss(P_x)
optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)

# Rank 0 has the data; every rank receives its rows.
images, targets = distdl.zero_volume_tensor(), distdl.zero_volume_tensor()
if P_root.active:
    images, targets = torch.rand(4, 1, 10, 8), torch.rand(4, 2, 10, 8)
x, target = scatter(images), scatter(targets)
shapes = f"x {tuple(x.shape)}, weight {tuple(conv.weight.shape)}"
world.print_sequential(f"rank {world.rank}: {shapes}")

for step in range(3):
    optimizer.zero_grad()
    loss = loss_of(conv(x), target)
    loss.backward()
    optimizer.step()
    if world.rank == 0:
        print(f"step {step}: loss {loss.item():.4f}")
