"""Writes seismic volumes with faults into two .npy files, for the programs of this folder. They are computed."""

import sys
from pathlib import Path

import numpy as np

from common import settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "networks"))
from seismic import volume

chosen = settings("volumes")
shape = (chosen.volumes, 1, *[chosen.size] * 3)
images = np.lib.format.open_memmap(chosen.images, "w+", np.float32, shape)
faults = np.lib.format.open_memmap(chosen.faults, "w+", np.uint8, (shape[0], *shape[2:]))
for number in range(chosen.volumes):
    amplitudes, at_fault = volume(number, chosen.size)
    images[number], faults[number] = amplitudes.numpy(), at_fault.numpy()
print(f"Written: {chosen.images}, {chosen.faults}")
