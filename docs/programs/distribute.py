import torch
from mpi4py import MPI

import distdl

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 5, padding=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)
)  # a class for each pixel
P_world = distdl.Partition(MPI.COMM_WORLD)
rows = P_world.size
P_x = P_world.create_cartesian_topology_partition([1, 1, rows, 1])  # batch, channels, height, width
P_labels = P_world.create_cartesian_topology_partition([1, rows, 1])  # labels have no channels
model = distdl.distribute(model, P_x)  # the same model, over blocks
loss_of = distdl.distribute(torch.nn.functional.cross_entropy, P_x, input_partitions={"target": P_labels})
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
data = torch.rand(16, 3, 100, 100), torch.randint(4, (16, 100, 100))  # only those of rank 0 are used
images, labels = distdl.scatter(data, (P_x, P_labels))

for step in range(3):
    loss = loss_of(model(images), labels)  # the same number on every rank
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if P_world.rank == 0:
        print(f"step {step}: loss {loss:.4f}", flush=True)
if P_world.rank == 0:
    print(distdl.report(model))
