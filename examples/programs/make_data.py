"""Writes the data of the programs of this folder: seismic volumes, weather, and a text. All of it is computed."""

import math
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "networks"))
from common import settings
from seismic import volume


def write_volumes(chosen):
    """Amplitudes of seismic volumes, and the points on faults, as two arrays."""
    shape = [chosen.size] * 3
    images = np.lib.format.open_memmap(chosen.folder / "images.npy", "w+", np.float32, (chosen.volumes, 1, *shape))
    faults = np.lib.format.open_memmap(chosen.folder / "faults.npy", "w+", np.uint8, (chosen.volumes, *shape))
    for number in range(chosen.volumes):
        amplitudes, at_fault = volume(number, chosen.size)
        images[number], faults[number] = amplitudes.numpy(), at_fault.numpy()


def write_weather(chosen):
    """Two fields on a globe at each time, of waves that travel at the speed of their latitude."""
    rows = chosen.rows
    latitude = torch.linspace(-0.5, 0.5, rows).mul(math.pi * 0.95)[:, None]
    longitude = torch.arange(2 * rows) * (math.pi / rows)
    shape = (chosen.times, 2, rows, 2 * rows)
    states = np.lib.format.open_memmap(chosen.folder / "weather.npy", "w+", np.float32, shape)
    for time in range(chosen.times):
        east = longitude - 0.1 * time * latitude.cos()
        wave = (3 * east).sin() * latitude.cos() + 0.5 * (2 * east + latitude * 4).cos()
        states[time] = torch.stack([wave, (4 * east).cos() * latitude.sin()]).numpy()


def write_text(chosen):
    """Sums of two numbers, written by characters."""
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, 100, (chosen.letters // 8, 2))
    text = "".join(f"{a}+{b}={a + b};" for a, b in pairs.tolist())
    np.save(chosen.folder / "text.npy", np.frombuffer(text[: chosen.letters].encode(), dtype=np.uint8))


chosen = settings(volumes=8, size=32, times=65, rows=32, letters=8192)
write_volumes(chosen)
write_weather(chosen)
write_text(chosen)
