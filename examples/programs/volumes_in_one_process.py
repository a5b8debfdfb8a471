"""Trains a 3-d U-Net to find faults in seismic volumes, in one process. volumes.py is the same program over blocks.

    python examples/programs/make_data.py && python examples/programs/volumes_in_one_process.py

It goes on where it was stopped. At the end it writes the weights of the average.
"""

import numpy as np
import torch
from common import settings
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader
from volumes_network import UNet3d

chosen = settings(volumes=8, channels=4, epochs=4)


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
        image, faults = torch.tensor(self.images[n]), torch.tensor(self.faults[n])
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


torch.manual_seed(0)
model = UNet3d(chosen.channels, 2).to(chosen.dtype)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
training, held_out = Volumes(range(chosen.volumes - 2)), Volumes(range(chosen.volumes - 2, chosen.volumes))
options = {"batch_size": 2, "shuffle": True}
batches, held_out_batches = (DataLoader(data, **options) for data in (training, held_out))
both = torch.nn.ModuleDict({"model": model, "average": average})
first = 0
if chosen.checkpoint.exists():
    saved = torch.load(chosen.checkpoint)
    both.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
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
    print(f"epoch {epoch}: loss {np.mean(losses):.13f}, dice {np.mean(dice):.6f}", flush=True)
    torch.save({"model": both.state_dict(), "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(), "epoch": epoch}, chosen.checkpoint)  # fmt: skip
save_file(average.module.state_dict(), chosen.export)
