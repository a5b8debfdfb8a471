import numpy as np
import torch
from safetensors.torch import load_file

import distdl
import distdl.nn as dnn

P_world = distdl.Partition()
P_replicas = P_world.create_cartesian_topology_partition([2, 2])  # replicas, workers of each
P = P_replicas.create_cartesian_subtopology_partition([False, True])  # this rank's replica
P_x = P.create_cartesian_topology_partition([1, 1, 2, 1])  # images: samples, channels, rows, columns

images = np.random.default_rng(0).random((12, 1, 16, 16), dtype=np.float32)  # a memory map, HDF5 or zarr as well


class Images(torch.utils.data.Dataset):
    """This rank's rows of each image, and the image that the network has to make of them."""

    def __len__(self):
        return len(images)

    def __getitem__(self, number):
        rows = distdl.data.read_block(images[number : number + 1], P_x)[0]
        return rows, rows.sqrt()


torch.manual_seed(0)  # the same on all ranks
net = torch.nn.Sequential(
    dnn.DistributedConv2d(P_x, 1, 8, 3, padding=1),
    torch.nn.ReLU(),
    dnn.DistributedConv2d(P_x, 8, 1, 3, padding=1),
)
model = distdl.DataParallel(net, P_replicas)
criterion = dnn.DistributedMSELoss(P_x)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
batches = distdl.data.loader(Images(), (P_x, P_x), batch_size=3, P_replicas=P_replicas, shuffle=True)

for epoch in range(3):
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        mean = model.reduce_loss(loss)  # over the samples of both replicas
    if P_world.rank == 0:
        print(f"epoch {epoch}: loss {mean:.3f}")

if model.replica == 0:  # the replicas are equal
    distdl.save("training.safetensors", net, optimizer, epoch=epoch)
P_world.comm.Barrier()
values = distdl.load("training.safetensors", net, optimizer)  # every replica, on any number of ranks
if P_world.rank == 0:
    weights = {name: list(value.shape) for name, value in load_file("training.safetensors").items() if "/" not in name}
    print(f"saved after epoch {values['epoch']}, for the sequential network too: {weights}")
