"""Seismic volumes with faults, computed: layers that are bent and broken, as a wave sees them.

Source: X. Wu, L. Liang, Y. Shi, S. Fomel, "FaultSeg3D: Using synthetic data sets to train an end-to-end convolutional
neural network for 3D seismic fault segmentation" (2019), in small.
"""

import torch
from torch.utils.data import Dataset


def volume(seed, size):
    """Amplitudes (1, size, size, size) with mean 0 and deviation 1, and where the faults are (size, size, size).

    The first dimension is the depth. The same seed gives the same volume.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high):
        return low + (high - low) * torch.rand((), generator=generator).item()

    axis = torch.arange(size, dtype=torch.float64)
    depth, y, x = torch.meshgrid(axis, axis, axis, indexing="ij")
    bend = uniform(1, 4) * torch.sin(x / size * uniform(2, 5) + uniform(0, 6)) * torch.sin(y / size * uniform(2, 5))
    layer = depth + bend + uniform(-0.2, 0.2) * x + uniform(-0.2, 0.2) * y  # which layer is at each point
    faults = torch.zeros(size, size, size, dtype=torch.int64)
    for _ in range(2):
        angle, slope = uniform(0, 3.14), uniform(0.2, 0.6)
        normal = torch.tensor([angle]).cos().item(), torch.tensor([angle]).sin().item()
        centre = uniform(0.25, 0.75) * size
        distance = (
            (x - size / 2) * normal[0] + (y - size / 2) * normal[1] + size / 2 - centre + slope * (depth - size / 2)
        )
        layer = torch.where(distance > 0, layer + uniform(3, 7), layer)
        faults[distance.abs() < 1] = 1
    reflectivity = torch.randn(4 * size, generator=generator, dtype=torch.float64)
    t = torch.arange(-6, 7, dtype=torch.float64)
    wavelet = (1 - (t / 2) ** 2) * torch.exp(-((t / 2) ** 2) / 2)  # Ricker's
    trace = torch.nn.functional.conv1d(reflectivity[None, None], wavelet[None, None], padding=6).flatten()
    place = (layer + 1.5 * size).clamp(0, 4 * size - 2)
    below = place.long()
    amplitude = torch.lerp(trace[below], trace[below + 1], place - below)  # between two samples of the trace
    amplitude = amplitude / amplitude.std() + 0.2 * torch.randn(
        size, size, size, generator=generator, dtype=torch.float64
    )
    return ((amplitude - amplitude.mean()) / amplitude.std()).unsqueeze(0), faults


class Volumes(Dataset):
    """The part of each volume that a rank reads, as (amplitudes, faults).

    Args:
        count: how many volumes.
        size: the extent of a volume in each dimension.
        first: the seed of the first volume.
        slices: of the part, of the three dimensions; None for all of it.
    """

    def __init__(self, count, size, dtype, first=0, slices=None):
        self.count, self.size, self.dtype, self.first = count, size, dtype, first
        self.slices = slices or (slice(None),) * 3

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        amplitude, faults = volume(self.first + number, self.size)
        return amplitude[(slice(None), *self.slices)].to(self.dtype), faults[self.slices]
