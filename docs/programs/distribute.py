import torch
from mpi4py import MPI

import distdl

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 5, padding=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10),
)  # fmt: skip
P_world = distdl.Partition(MPI.COMM_WORLD)
P_x = P_world.create_cartesian_topology_partition([1, 1, P_world.size, 1])  # batch, channels, height, width
model = distdl.distribute(model, P_x)  # the same model, over blocks
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images, targets = torch.rand(16, 3, 100, 100), torch.randint(10, (16,))  # only those of rank 0 are used

for step in range(3):
    y = model(distdl.scatter(images, P_x))
    scores = distdl.gather(y, model.output_partition)  # on rank 0; without elements on other ranks
    loss = torch.nn.functional.cross_entropy(scores, targets) if P_world.rank == 0 else scores.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if P_world.rank == 0:
        print(f"step {step}: loss {loss:.4f}", flush=True)
if P_world.rank == 0:
    print(distdl.report(model))
