"""The common part of adaptive pooling and interpolation: a fixed number of outputs, and window averages."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from distdl.modules.graph import empty_result
from distdl.nn.base.precision import FLOATING
from distdl.nn.kernels.channels_last import selected
from distdl.nn.windows.layer import WindowLayer
from distdl.nn.windows.sums import window_sums

_ADAPTIVE_POOLS = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


class AdaptiveLayer(WindowLayer):
    """A layer with a fixed number of outputs. Each worker computes its block of them."""

    accepted: tuple[torch.dtype, ...] | None = FLOATING

    def windows(self) -> list[list[tuple[int, int]]]:
        """(start, stop) of each window by spatial dimension, counted in the box that this worker read."""
        windows = []
        for along in self.axes:
            reads = [along.resizing.reads(along.n, (o, o + 1)) for o in range(*along.outputs)]
            windows.append([(start - along.reads[0], stop - along.reads[0]) for start, stop in reads])
        return windows

    def dims_of_average(self) -> int:
        return self.dims + (self.dims == 3)  # only AdaptiveAvgPool3d refuses an input without channels

    def no_outputs(self, read: torch.Tensor, shape: list[int]) -> torch.Tensor:
        empty = read.flatten()[:0].view(shape)
        return empty if self._read is not None else empty_result(empty)

    def average(self, read: torch.Tensor) -> torch.Tensor:
        windows = self.windows()
        shape = [*read.shape[: -self.dims], *map(len, windows)]
        if 0 in shape:
            return self.no_outputs(read, shape)
        if shape[-self.dims :] == [along.m for along in self.axes]:
            return _ADAPTIVE_POOLS[self.dims](read, shape[-self.dims :])  # sums in another order for a single output
        sums, lengths = read, [max(stop - start for start, stop in along) for along in windows]
        for d, along in enumerate(windows, start=-self.dims):
            sums = F.pad(sums, [0, 0] * (-d - 1) + [0, 1])  # a zero, to fill shorter windows
            filler = sums.shape[d] - 1
            rows = [i if i < stop else filler for start, stop in along for i in range(start, start + lengths[d])]
            sums = selected(sums, d, torch.tensor(rows, device=sums.device))
        sums = window_sums(sums, lengths, lengths)
        for d, along in enumerate(windows, start=-self.dims):
            counts = torch.tensor([stop - start for start, stop in along], dtype=sums.dtype, device=sums.device)
            sums = sums / counts.view(-1, *[1] * (-d - 1))
        return sums.to(read.dtype)
