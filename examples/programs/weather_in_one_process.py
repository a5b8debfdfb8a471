"""Trains a forecast of weather, in one process. weather.py is the same program over blocks.

    python examples/programs/make_data.py && python examples/programs/weather_in_one_process.py

It goes on where it was stopped. At the end it writes the weights of the average.
"""

import math

import numpy as np
import torch
from common import settings
from safetensors.torch import save_file
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader
from weather_network import Forecast

chosen = settings(times=65, channels=8, modes=6, epochs=4)


class Steps(torch.utils.data.Dataset):
    """The states of the file at some times, and a step later."""

    def __init__(self, times):
        self.times, self.states = times, np.load(chosen.folder / "weather.npy", mmap_mode="r")

    def __len__(self):
        return len(self.times)

    def __getitem__(self, i):
        t = self.times[i]
        before, after = torch.tensor(self.states[t : t + 2]).to(chosen.dtype)
        return before, after


def noisy(states):
    """So that a forecast may begin with what another forecast says."""
    return states + 0.01 * torch.randn_like(states)


def error_of(forecast, states):
    """The mean square over the globe, on which rows near the poles are shorter."""
    rows = torch.linspace(-0.5, 0.5, states.shape[-2], dtype=chosen.dtype).mul(math.pi * 0.95).cos()[:, None]
    return ((forecast - states).square() * rows).mean() / rows.mean()


torch.manual_seed(0)
model = Forecast(2, chosen.channels, chosen.modes).to(chosen.dtype)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
training, held_out = Steps(range(chosen.times - 9)), Steps(range(chosen.times - 9, chosen.times - 1))
batches, held_out_batches = (DataLoader(data, batch_size=4, shuffle=data is training) for data in (training, held_out))
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
    losses = []
    for before, after in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=not chosen.double):
            loss = error_of(model(noisy(before)), after)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        losses.append(loss.item())
    with torch.no_grad():
        errors = [error_of(average(before), after).item() ** 0.5 for before, after in held_out_batches]
    print(f"epoch {epoch}: loss {np.mean(losses):.13f}, error {np.mean(errors):.13f}", flush=True)
    torch.save({"model": both.state_dict(), "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(), "epoch": epoch}, chosen.checkpoint)  # fmt: skip
save_file(average.module.state_dict(), chosen.export)
