"""Group normalization over blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.nn.base.option_types import Device, Dtype, Float, HasBias, Natural, Positive, option, with_options
from distdl.nn.kernels.channels_last import ordered_like
from distdl.nn.norm.base import NormLayer
from distdl.nn.norm.moments import Gathering, SharedMoments
from distdl.partitions.boxes import block_intervals

__all__ = ["DistributedGroupNorm"]


@with_options
class DistributedGroupNorm(NormLayer):
    """Normalizes groups of channels by the moments of each group: ``torch.nn.GroupNorm`` over blocks.

    Args:
        P_x: the partition of input and output, ``[batch, channels, *others]``; any dimension may be split, also within
            groups.
        num_groups, num_channels, eps, affine, device, dtype, bias: as in ``torch.nn.GroupNorm``.

    Shape:
        ``(N, C, *others)`` in any blocks; with parameters, channels in balanced blocks. The result is in the same
        blocks.

    Attributes:
        weight, bias: this worker's block of the parameters of shape (num_channels,); None as in torch.nn. Workers with
            the same channels share it: see :func:`distdl.parameter_layout`.

    Raises:
        ValueError: on all ranks, if P_x has fewer than two dimensions, num_channels is not divisible by num_groups, the
            input is not in such blocks, its dtypes differ, or the input is a single value.
        RuntimeError: on all ranks, for numbers of channels and groups, or dtypes of input and parameters, that torch.nn
            refuses.

    Source: Y. Wu, K. He, "Group Normalization" (2018); options as in
    https://docs.pytorch.org/docs/stable/generated/torch.nn.GroupNorm.html.
    """

    num_groups: Positive
    num_channels: Natural
    eps: Float = 1e-5
    affine: bool = True
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    bias: HasBias = option(default=True)

    def check_options(self) -> None:
        name, groups, channels = type(self).__name__, self.num_groups, self.num_channels
        if channels % groups:
            raise ValueError(f"{name}: num_channels ({channels}) must be divisible by num_groups ({groups})")
        self.check_shape(self.grid.dim >= 2, "it must be [batch, channels, *others]")
        self.declare_affine((channels,), (1,), bool(self.affine), bool(self.passed["bias"]))

    def set_up(self) -> None:
        name, sizes = type(self).__name__, self.blocks(self.grid)
        if self.layouts:
            self.check_balanced(1, self.num_channels, "num_channels")
        extents = [sum(along) for along in sizes]
        channels, others = extents[1], list(range(2, len(sizes)))
        if channels % self.num_groups:
            raise RuntimeError(f"{name}: the input has {channels} channels, num_groups is {self.num_groups}")
        self._of_group = channels // self.num_groups
        if extents[0] * self._of_group * math.prod(extents[2:]) == 1:
            raise ValueError(f"{name}: Expected more than 1 value per channel when training, got input size {extents}")
        self.check_dtypes(self._on_one_channel)
        blocks = block_intervals(sizes[1])
        straddles = any(start % max(self._of_group, 1) for start, _ in blocks)
        split = [d for d in [1, *others] if self.grid.shape[d] > 1 and (d != 1 or straddles)]
        self._is_empty = math.prod(extents) == 0
        spread = split and not self._is_empty and self.grid.active
        self._shared: SharedMoments | None = None
        if spread:
            gather = Gathering(self.grid, split, sizes, others)
            starts = [start if straddles else 0 for start, _ in blocks]
            self._shared = SharedMoments(gather, self._groups(gather, starts, sizes, math.prod(extents[2:])))

    def _groups(
        self, gather: Gathering, starts: Sequence[int], sizes: Sequence[Sequence[int]], others: int
    ) -> _core.MomentGroups:
        """The groups of the gathered channels.

        Args:
            starts: the start of each block of channels, from the first gathered channel.
            others: the number of elements of a channel of the whole input.
        """
        place = self.grid.place
        n = sizes[0][place[0]]
        blocks = [worker[1] for worker in gather.places]
        per_instance = max(starts[block] + sizes[1][block] for block in blocks) // self._of_group

        def groups_of(block: int) -> torch.Tensor:
            """The group of each channel of a block, instance after instance."""
            channels = torch.arange(starts[block], starts[block] + sizes[1][block], device="cpu") // self._of_group
            return (torch.arange(n, device="cpu")[:, None] * per_instance + channels).reshape(-1)

        numbers = [n * sizes[1][block] for block in blocks]
        counts = torch.tensor(gather.counts, dtype=torch.double, device="cpu")
        return _core.MomentGroups(
            (0, 2),
            numbers,
            torch.cat([groups_of(block) for block in blocks]),
            counts.repeat_interleave(torch.tensor(numbers, device="cpu")),
            groups_of(place[1]),
            n * per_instance,
            others * self._of_group,
        )

    def _on_one_channel(self, element: torch.Tensor) -> torch.Tensor:
        x, names = element.expand(1, 1, 2), ("weight", "bias")
        return self.with_samples(F.group_norm, x, names, num_groups=1, eps=self.eps)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        if self._shared is not None:
            return ordered_like(input, self.normalized(input, self._shared, math.nan)[0])
        if self._is_empty or input.shape[1] == 0:  # as on all workers with the same channels
            return self.on_empty(input)
        weight, bias = self.named(self.parameters_in_use())
        # F.group_norm would refuse a single value of a larger input.
        groups, cudnn = input.shape[1] // self._of_group, torch.backends.cudnn.enabled
        return torch.group_norm(input, groups, weight, bias, self.eps, cudnn)
