"""Batch normalization over blocks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from distdl.nn.base.by_dimensions import family
from distdl.nn.norm.base import ChannelNorm, with_plain_gradient
from distdl.nn.norm.moments import Gathering, SharedMoments

__all__ = ["DistributedBatchNorm", "DistributedBatchNorm1d", "DistributedBatchNorm2d", "DistributedBatchNorm3d"]

_BATCH_NORM_DOC = """Normalizes each channel by the moments of the whole batch: {twin} over blocks.

    Args:
        P_x: the partition of input and output, ``{partition}``; any dimension may be split.
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as in {twin}.

    Shape:
        ``{shape}`` in any blocks; with parameters or running statistics, channels in balanced blocks. The result is in
        the same blocks. Zero volume on all other ranks.

    Attributes:
        weight, bias: this worker's block of the parameters of shape (num_features,); None as in torch.nn. Workers with
            the same channels share it: see :func:`distdl.parameter_layout`.
        running_mean, running_var: running statistics of the whole batch, for the channels of this worker.
        num_batches_tracked: the number of batches, on each worker.

    Raises:
        ValueError: on all ranks, if P_x has another number of dimensions, the input is not in such blocks, its
            dtypes differ, or a channel has a single value in training.
        RuntimeError: on all ranks, for dtypes of input and parameters that torch.nn refuses.

    Collective: constructing over P_x's parent communicator, calling over P_x. In training, workers with parts of the
    same channels exchange their moments, once in each direction.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization" (2015); options as in
    https://docs.pytorch.org/docs/stable/generated/torch.nn.{page}.html.
    """


class DistributedBatchNorm(ChannelNorm):
    __doc__ = _BATCH_NORM_DOC.format(
        twin="``torch.nn.SyncBatchNorm``",
        partition="[batch, channels, *others]",
        shape="(N, C, *others)",
        page="SyncBatchNorm",
    )

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        """SyncBatchNorm takes any number of dimensions, with a block of the batch in each process."""
        return (torch.nn.SyncBatchNorm,) if cls.dims is None else super().sequential_classes()

    def check_partition(self) -> None:
        dims, dim = self.dims, self.grid.dim
        fits = dim >= 2 if dims is None else dim == dims + 2 or (dims == 1 and dim == 2)
        others = "any number of" if dims is None else dims
        self.check_shape(fits, f"it must have a dimension for the batch, one for the channels, and {others} others")

    def set_up(self) -> None:
        sizes = self.check_channels()
        extents = [sum(along) for along in sizes]
        reduced = [d for d in range(len(sizes)) if d != 1]
        self._count = math.prod(extents[d] for d in reduced)
        uses = self.uses_statistics_of_input
        if uses and self._count == 1:
            raise ValueError(
                f"{type(self).__name__}: Expected more than 1 value per channel when training, got input size {extents}"
            )
        self.check_dtypes(self._on_one_channel)
        split = [d for d in reduced if self.grid.shape[d] > 1]
        spread = uses and split and self._count > 0 and self.grid.active
        self._shared: SharedMoments | None = None
        if spread:
            gather = Gathering(self.grid, split, sizes, reduced)
            self._shared = SharedMoments.by_channel(gather, (1, 2), sizes[1][self.grid.place[1]])

    def _on_one_channel(self, element: torch.Tensor) -> torch.Tensor:
        return self.sampled(F.batch_norm, element.expand(2, 1))

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        momentum = self._momentum_of_this_batch()
        if self._shared is not None:
            y, mean, squares = self.normalized(input, self._shared, math.inf)
            if self.running[0] is not None:
                self.track(mean, squares, self._count - 1, momentum)
            return y
        if input.numel() == 0:
            return self.on_empty(input)
        weight, bias = self.named(self.parameters_in_use())
        uses = self.uses_statistics_of_input
        return with_plain_gradient(F.batch_norm(input, *self.running, weight, bias, uses, momentum, self.eps))

    @property
    def uses_statistics_of_input(self) -> bool:
        return self.training or (self.running_mean is None and self.running_var is None)

    @property
    def running(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """None if training does not update them."""
        return super().running if not self.training or self.track_running_stats else (None, None)

    def _momentum_of_this_batch(self) -> float:
        """Count the batch in training; its weight in the running statistics."""
        momentum = 0.0 if self.momentum is None else self.momentum
        if not self.training or not self.track_running_stats or self.num_batches_tracked is None:
            return momentum
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else momentum


DistributedBatchNorm1d, DistributedBatchNorm2d, DistributedBatchNorm3d = family(
    "DistributedBatchNorm{dims}d",
    _BATCH_NORM_DOC,
    DistributedBatchNorm,
    twin="``torch.nn.BatchNorm{dims}d``",
    partition="[batch, channels, *space]",
    shape="(N, C, *space)",
    page="BatchNorm{dims}d",
)
