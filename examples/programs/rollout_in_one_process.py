"""Forecasts weather step after step by the network of weather.py, in one process. rollout.py does so over blocks.

python examples/programs/rollout_in_one_process.py
"""

import numpy as np
import torch
import zarr
from common import settings
from safetensors.torch import load_file
from weather_network import Forecast

chosen = settings(channels=8, modes=6, first=56, steps=30)
model = Forecast(2, chosen.channels, chosen.modes).to(chosen.dtype)
model.load_state_dict(load_file(chosen.folder / "weather.safetensors"))
states = np.load(chosen.folder / "weather.npy", mmap_mode="r")[chosen.first : chosen.first + 1]
state = torch.tensor(states).to(chosen.dtype)

_, fields, rows, columns = states.shape
shape, dtype = (chosen.steps, fields, rows, columns), "f8" if chosen.double else "f4"
chunks = (1, fields, rows, columns)
forecasts = zarr.open_array(chosen.forecasts, mode="w", shape=shape, chunks=chunks, dtype=dtype)
with torch.no_grad():
    for step in range(chosen.steps):
        state = model(state)
        forecasts[step : step + 1] = state.numpy()
print(f"{chosen.steps} forecasts in {chosen.forecasts}", flush=True)
