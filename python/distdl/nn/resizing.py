"""What adaptive pooling and interpolation have in common: a given number of outputs over blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from distdl.nn.pooling import window_sums
from distdl.nn.window import WindowLayer

FLOATING = (torch.half, torch.bfloat16, torch.float, torch.double)


class ResizingLayer(WindowLayer):
    """A layer of which each worker computes its block of as many outputs as are asked for."""

    def _check_dtype(self, dtype: torch.dtype, accepted: Sequence[torch.dtype] = FLOATING) -> None:
        """Refuse what torch.nn has no kernel for, also on workers that have nothing to compute."""
        if dtype not in accepted:
            raise NotImplementedError(f"{type(self).__name__}: not implemented for {dtype}")

    def _adaptive_windows(self) -> list[list[tuple[int, int]]]:
        """For each spatial dimension the (start, stop) in what this worker read of each of its adaptive windows."""
        windows = []
        for resizing, n, outputs, (origin, _) in self._own():
            reads = [resizing.reads(n, (o, o + 1)) for o in range(*outputs)]
            windows.append([(start - origin, stop - origin) for start, stop in reads])
        return windows

    def _average(self, read: torch.Tensor) -> torch.Tensor:
        """Adaptive average pooling of what this worker read."""
        self._check_dtype(read.dtype)
        self._check_extents(self.dims + (self.dims == 3))  # AdaptiveAvgPool3d alone refuses an input without channels
        windows = self._adaptive_windows()
        shape = [*read.shape[: -self.dims], *map(len, windows)]
        if 0 in shape:
            return read.flatten()[:0].view(shape)
        if shape[-self.dims :] == [sum(sizes) for sizes in self._exchange.outputs[-self.dims :]]:
            return _FUNCTIONS[self.dims](read, shape[-self.dims :])  # which adds up in its own way for one output
        sums, lengths = read, [max(stop - start for start, stop in along) for along in windows]
        for d, along in enumerate(windows, start=-self.dims):
            sums = F.pad(sums, [0, 0] * (-d - 1) + [0, 1])  # a zero, to fill up windows that are shorter than others
            filler = sums.shape[d] - 1
            rows = [i if i < stop else filler for start, stop in along for i in range(start, start + lengths[d])]
            sums = sums.index_select(d, torch.tensor(rows))
        sums = window_sums(sums, lengths, lengths)
        for d, along in enumerate(windows, start=-self.dims):
            counts = torch.tensor([stop - start for start, stop in along], dtype=sums.dtype)
            sums = sums / counts.view(-1, *[1] * (-d - 1))
        return sums.to(read.dtype)


_FUNCTIONS = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
