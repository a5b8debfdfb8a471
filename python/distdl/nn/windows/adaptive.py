"""The common part of adaptive pooling and interpolation: a given number of outputs, and averages over their windows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from distdl.nn.precision import FLOATING
from distdl.nn.tie import empty_result
from distdl.nn.windows.layer import WindowLayer
from distdl.nn.windows.sums import window_sums

_FUNCTIONS = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


class AdaptiveLayer(WindowLayer):
    """A layer with a given number of outputs. Each worker computes its block of them."""

    accepted: tuple[torch.dtype, ...] | None = FLOATING

    def windows(self) -> list[list[tuple[int, int]]]:
        """For each spatial dimension the (start, stop) of each window, counted in the tensor that this worker read."""
        windows = []
        for along in self.own:
            reads = [along.resizing.reads(along.n, (o, o + 1)) for o in range(*along.outputs)]
            windows.append([(start - along.reads[0], stop - along.reads[0]) for start, stop in reads])
        return windows

    def dims_of_average(self) -> int:
        """How many of the input's last dimensions must have elements for torch.nn to average."""
        return self.dims + (self.dims == 3)  # only AdaptiveAvgPool3d refuses an input without channels

    def no_outputs(self, read: torch.Tensor, shape: list[int]) -> torch.Tensor:
        """The result of a worker without outputs, in the graph of what it read."""
        nothing = read.flatten()[:0].view(shape)
        return nothing if self._read is not None else empty_result(nothing)

    def average(self, read: torch.Tensor) -> torch.Tensor:
        """Adaptive average pooling of the tensor that this worker read."""
        windows = self.windows()
        shape = [*read.shape[: -self.dims], *map(len, windows)]
        if 0 in shape:
            return self.no_outputs(read, shape)
        if shape[-self.dims :] == [along.m for along in self.own]:
            return _FUNCTIONS[self.dims](read, shape[-self.dims :])  # sums in another order for one output
        sums, lengths = read, [max(stop - start for start, stop in along) for along in windows]
        for d, along in enumerate(windows, start=-self.dims):
            sums = F.pad(sums, [0, 0] * (-d - 1) + [0, 1])  # a zero, which fills up the shorter windows
            filler = sums.shape[d] - 1
            rows = [i if i < stop else filler for start, stop in along for i in range(start, start + lengths[d])]
            sums = sums.index_select(d, torch.tensor(rows, device=sums.device))
        sums = window_sums(sums, lengths, lengths)
        for d, along in enumerate(windows, start=-self.dims):
            counts = torch.tensor([stop - start for start, stop in along], dtype=sums.dtype, device=sums.device)
            sums = sums / counts.view(-1, *[1] * (-d - 1))
        return sums.to(read.dtype)
