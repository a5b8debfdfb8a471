"""Trains a 3-d U-Net to find faults in seismic volumes, of which each rank reads a block of rows.

    python examples/programs/make_data.py && mpiexec -n 4 python -m mpi4py examples/programs/volumes.py

It goes on where it was stopped, on any number of ranks. At the end it writes the weights of the average for torch.
"""

import numpy as np
import torch
from common import settings
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from volumes_network import UNet3d

import distdl
from distdl import clip_grad_norm_

chosen = settings(volumes=8, channels=4, epochs=4)
P = distdl.Partition()
P_x = P.create_cartesian_topology_partition([1, 1, 1, P.size, 1])  # batch, channels, depth, rows, columns
P_faults = P.create_cartesian_topology_partition([1, 1, P.size, 1])


class Volumes(torch.utils.data.Dataset):
    """Amplitudes and faults of some volumes of the file."""

    def __init__(self, numbers):
        self.numbers = numbers
        files = (chosen.folder / "images.npy", chosen.folder / "faults.npy")
        self.images, self.faults = (np.load(file, mmap_mode="r") for file in files)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, i):
        n = self.numbers[i]
        parts = (self.images[n : n + 1], P_x), (self.faults[n : n + 1], P_faults)
        image, faults = (distdl.data.read_block(array, P)[0] for array, P in parts)
        return image.to(chosen.dtype), faults.long()


def augment(images):
    """Other polarities, and noise."""
    signs = torch.randint(2, (images.shape[0], 1, 1, 1, 1)) * 2 - 1
    return images * signs + 0.1 * torch.randn_like(images)


def loss_of(scores, faults):
    """Few points are on a fault."""
    return cross_entropy(scores.to(chosen.dtype), faults, torch.tensor([0.2, 0.8], dtype=chosen.dtype))


def dice_of(scores, faults):
    """1 for a perfect prediction of the faults."""
    predicted, true = scores.argmax(1) == 1, faults == 1
    return 2 * (predicted & true).sum() / (predicted.sum() + true.sum()).clamp(min=1)


augment = distdl.distribute(augment, P_x, as_sequential=True)
loss_of, dice_of = (distdl.distribute(f, P_x, input_partitions={"faults": P_faults}) for f in (loss_of, dice_of))
torch.manual_seed(0)
model = distdl.distribute(UNet3d(chosen.channels, 2).to(chosen.dtype), P_x)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
training, held_out = Volumes(range(chosen.volumes - 2)), Volumes(range(chosen.volumes - 2, chosen.volumes))
options = {"batch_size": 2, "shuffle": True}
batches, held_out_batches = (distdl.data.loader(data, (P_x, P_faults), **options) for data in (training, held_out))
both = torch.nn.ModuleDict({"model": model, "average": average})
first = 0
if chosen.checkpoint.exists():
    saved = distdl.load(chosen.checkpoint, both, optimizer)
    schedule.load_state_dict(saved["schedule"])
    first = saved["epoch"] + 1

for epoch in range(first, chosen.epochs):
    torch.manual_seed(epoch)
    model.train()
    losses = []
    for images, faults in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=not chosen.double):
            loss = loss_of(model(augment(images)), faults)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        losses.append(loss.item())
    average.eval()
    with torch.no_grad():
        dice = [dice_of(average(images), faults).item() for images, faults in held_out_batches]
    if P.rank == 0:
        print(f"epoch {epoch}: loss {np.mean(losses):.13f}, dice {np.mean(dice):.6f}", flush=True)
    distdl.save(chosen.checkpoint, both, optimizer, schedule=schedule.state_dict(), epoch=epoch)
distdl.save(chosen.export, average.module)
