"""Instance normalization over blocks."""

from __future__ import annotations

import math
import warnings
from typing import ClassVar

import torch
import torch.nn.functional as F

from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import with_options
from distdl.nn.norm.base import ChannelNorm, with_plain_gradient
from distdl.nn.norm.moments import Gathering, SharedMoments
from distdl.nn.windows.blocks import SPATIAL

__all__ = ["DistributedInstanceNorm1d", "DistributedInstanceNorm2d", "DistributedInstanceNorm3d"]


@with_options
class _DistributedInstanceNorm(ChannelNorm):
    dims: ClassVar[int]
    affine: bool = False
    track_running_stats: bool = False

    def check_partition(self) -> None:
        self.check_shape(self.grid.dim - self.dims in (1, 2), SPATIAL.format(self.dims))

    def channel_axis(self) -> int:
        return self.grid.dim - self.dims - 1 if self.grid.known else 0

    @property
    def uses_statistics_of_input(self) -> bool:
        return self.training or not self.track_running_stats

    def set_up(self) -> None:
        sizes, channels = self.check_channels(), self._channels
        extents = [sum(along) for along in sizes]
        if extents[channels] != self.num_features:  # torch.nn ignores num_features then, and warns, too
            warnings.warn(
                f"{type(self).__name__}: the input has {extents[channels]} channels, num_features is "
                f"{self.num_features}", stacklevel=2,
            )  # fmt: skip
        space = list(range(channels + 1, len(sizes)))
        self._count, self._instances = math.prod(extents[channels + 1 :]), math.prod(extents[:channels])
        uses = self.uses_statistics_of_input
        if uses and self._count == 1:
            raise ValueError(
                f"{type(self).__name__}: Expected more than 1 spatial element when training, got input size {extents}"
            )
        self.check_dtypes(self._on_one_channel)
        split = [d for d in space if self.grid.shape[d] > 1]
        tracks_split_batch = self.running_mean is not None and channels == 1 and self.grid.shape[0] > 1
        spread = uses and (split or tracks_split_batch) and self._count * self._instances > 0 and self.grid.active
        self._shared: SharedMoments | None = None
        if spread:
            gather = Gathering(self.grid, split, sizes, space)
            own = math.prod(sizes[d][self.grid.place[d]] for d in range(channels + 1))
            self._shared = SharedMoments.by_channel(gather, (0, channels + 1), own)
        self._over_batch = Gathering(self.grid, [0], sizes, [0]) if spread and tracks_split_batch else None

    def _on_one_channel(self, element: torch.Tensor) -> torch.Tensor:
        return self.sampled(F.instance_norm, element.expand(1, 1, 2))

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        if self._shared is not None:
            y, mean, squares = self.normalized(input, self._shared, math.inf)
            if self.running_mean is not None:
                channels = input.shape[: self._channels + 1]
                self._track_instances(mean.view(channels), squares.view(channels) / (self._count - 1))
            return y
        if input.numel() == 0:
            return self.on_empty(input)
        weight, bias = self.named(self.parameters_in_use())
        x = input if self._channels else input.unsqueeze(0)
        uses, momentum = self.uses_statistics_of_input, self.momentum or 0.0
        y = F.instance_norm(x, self.running_mean, self.running_var, weight, bias, uses, momentum, self.eps)
        return with_plain_gradient(y if self._channels else y.squeeze(0))

    def _track_instances(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        sums = torch.stack([mean, variance])
        sums = sums.sum(1) if self._channels else sums
        if self._over_batch is not None:
            sums = self._over_batch(sums.view(-1)).view(len(self._over_batch.counts), *sums.shape).sum(0)
        mean, variance = sums / self._instances
        self.track(mean, variance, 1.0, self.momentum or 0.0)


_INSTANCE_NORM_DOC = """Normalizes each channel of each instance: ``torch.nn.InstanceNorm{dims}d`` over blocks.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``; any dimension
            may be split.
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as in
            ``torch.nn.InstanceNorm{dims}d``.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, with the dimensions of P_x, in any blocks; with parameters or running
        statistics, channels in balanced blocks. The result is in the same blocks.

    Attributes:
        weight, bias: this worker's block of the parameters of shape (num_features,); None as in torch.nn. Workers with
            the same channels share it: see :func:`distdl.parameter_layout`.
        running_mean, running_var: running statistics over all instances, for the channels of this worker; None without
            ``track_running_stats``.
        num_batches_tracked: 0, as in torch.nn.

    Raises:
        ValueError: on all ranks, if P_x has another number of dimensions, the input is not in such blocks, its
            dtypes differ, or a channel has a single element where its own moments are used.
        RuntimeError: on all ranks, for dtypes of input and parameters that torch.nn refuses.
    """

DistributedInstanceNorm1d, DistributedInstanceNorm2d, DistributedInstanceNorm3d = family(
    "DistributedInstanceNorm{dims}d", _INSTANCE_NORM_DOC, _DistributedInstanceNorm
)
