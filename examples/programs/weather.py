"""Trains a forecast of weather, for which each rank reads a block of rows and columns of the globe.

    python examples/programs/make_data.py && mpiexec -n 4 python -m mpi4py examples/programs/weather.py

It goes on where it was stopped, on any number of ranks. At the end it writes the weights of the average for torch.
"""

import math

import numpy as np
import torch
from common import settings
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from weather_network import Forecast

import distdl
from distdl import clip_grad_norm_

chosen = settings(times=65, channels=8, modes=6, epochs=4)
P = distdl.Partition()
P_x = P.create_cartesian_topology_partition([1, 1, 1, P.size])  # batch, fields, rows, columns


class Steps(torch.utils.data.Dataset):
    """The states of the file at some times, and a step later."""

    def __init__(self, times):
        self.times, self.states = times, np.load(chosen.folder / "weather.npy", mmap_mode="r")

    def __len__(self):
        return len(self.times)

    def __getitem__(self, i):
        t = self.times[i]
        before, after = distdl.data.read_block(self.states[t : t + 2], P_x).to(chosen.dtype)
        return before, after


def noisy(states):
    """So that a forecast may begin with what another forecast says."""
    return states + 0.01 * torch.randn_like(states)


def error_of(forecast, states):
    """The mean square over the globe, on which rows near the poles are shorter."""
    rows = torch.linspace(-0.5, 0.5, states.shape[-2], dtype=chosen.dtype).mul(math.pi * 0.95).cos()[:, None]
    return ((forecast - states).square() * rows).mean() / rows.mean()


noisy = distdl.distribute(noisy, P_x, as_sequential=True)
error_of = distdl.distribute(error_of, P_x)
torch.manual_seed(0)
model = distdl.distribute(Forecast(2, chosen.channels, chosen.modes).to(chosen.dtype), P_x)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
training, held_out = Steps(range(chosen.times - 9)), Steps(range(chosen.times - 9, chosen.times - 1))
batches, held_out_batches = (
    distdl.data.loader(data, (P_x, P_x), batch_size=4, shuffle=data is training) for data in (training, held_out)
)
both = torch.nn.ModuleDict({"model": model, "average": average})
first = 0
if chosen.checkpoint.exists():
    saved = distdl.load(chosen.checkpoint, both, optimizer)
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
    if P.rank == 0:
        print(f"epoch {epoch}: loss {np.mean(losses):.13f}, error {np.mean(errors):.13f}", flush=True)
    distdl.save(chosen.checkpoint, both, optimizer, schedule=schedule.state_dict(), epoch=epoch)
distdl.save(chosen.export, average.module)
