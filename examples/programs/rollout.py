"""Forecasts weather step after step by the network of weather.py. Each rank writes its block of each forecast.

mpiexec -n 4 python -m mpi4py examples/programs/rollout.py
"""

import numpy as np
import torch
import zarr
from common import settings
from mpi4py import MPI
from weather_network import Forecast

import distdl

chosen = settings(channels=8, modes=6, first=56, steps=30)
P = distdl.Partition()
P_x = P.create_cartesian_topology_partition([1, 1, 1, P.size])  # batch, fields, rows, columns
model = distdl.distribute(Forecast(2, chosen.channels, chosen.modes).to(chosen.dtype), P_x)
distdl.load(chosen.folder / "weather.safetensors", model)
states = np.load(chosen.folder / "weather.npy", mmap_mode="r")[chosen.first : chosen.first + 1]
state = distdl.data.read_block(states, P_x).to(chosen.dtype)

_, fields, rows, columns = states.shape
shape, dtype = (chosen.steps, fields, rows, columns), "f8" if chosen.double else "f4"
if P.rank == 0:
    chunks = (1, fields, rows, -(-columns // P.size))
    zarr.open_array(chosen.forecasts, mode="w", shape=shape, chunks=chunks, dtype=dtype)
MPI.COMM_WORLD.Barrier()
forecasts = zarr.open_array(chosen.forecasts, mode="r+")
root = None if columns % P.size == 0 else 0  # chunks have one size, and only blocks of one size are chunks
with torch.no_grad():
    for step in range(chosen.steps):
        state = model(state)
        distdl.data.write_block(forecasts, P_x, state, region=[slice(step, step + 1)], root=root)
if P.rank == 0:
    print(f"{chosen.steps} forecasts in {chosen.forecasts}", flush=True)
