"""Group normalization over blocks."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY

import torch
import torch.nn.functional as F

from distdl.nn.base.option_types import Device, Dtype, Float, HasBias, Natural, Positive, option, with_options
from distdl.nn.base.precision import wide
from distdl.nn.norm.base import NormLayer
from distdl.nn.norm.moments import Gathering, MomentBlock, merge
from distdl.nn.windows.blocks import block_intervals

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
        self._gathering = Gathering(self.grid, split, sizes, others) if spread else None
        if not self.grid.active:
            return
        place = self.grid.place[1]
        # The sizes of the gathered blocks of channels, and the start of this worker's block among them.
        self._gathered_sizes = sizes[1] if straddles else [sizes[1][place]]
        self._start = blocks[place][0] if straddles else 0

    def _on_one_channel(self, element: torch.Tensor) -> torch.Tensor:
        x, names = element.expand(1, 1, 2), ("weight", "bias")
        return self.with_samples(F.group_norm, x, names, num_groups=1, eps=self.eps)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        if self._gathering is not None:
            return self._on_part(input, self._gathering)
        if self._is_empty or input.shape[1] == 0:  # as on all workers with the same channels
            return self.on_empty(input)
        weight, bias = self.named(self.parameters_in_use())
        # F.group_norm would refuse a single value of a larger input.
        groups, cudnn = input.shape[1] // self._of_group, torch.backends.cudnn.enabled
        return torch.group_norm(input, groups, weight, bias, self.eps, cudnn)

    def _on_part(self, input: torch.Tensor, gathering: Gathering) -> torch.Tensor:
        """Normalize a block with parts of groups, whose moments are merged from all parts."""
        arrive = self.start_parameters()
        n, channels = input.shape[:2]
        block = MomentBlock.of(wide(input).reshape(1, n * channels, math.prod(input.shape[2:])))
        means, squares = self._by_group(gathering(block.mean, block.squares), n).unbind(1)
        counts = gathering.counts[: means.shape[0]]  # equal for all blocks of channels
        of_groups = merge(means, squares, counts, (0, 3))  # of shape (batch, groups)
        of_channel = torch.arange(self._start, self._start + channels, device=input.device) // self._of_group
        mean, square = (moment.index_select(1, of_channel).reshape(-1) for moment in of_groups)
        affine = [None if x is None else x.expand(n, channels).reshape(-1) for x in self.named(arrive())]
        variance = square / (sum(counts) * self._of_group)
        y = block.normalized(mean, variance, self.eps, *affine, beyond=math.nan)
        return self.as_result(y.view(input.shape), input)

    def _by_group(self, gathered: torch.Tensor, n: int) -> torch.Tensor:
        """(workers along the others, mean or squares, batch, groups, channels of a group) from all messages."""
        assert self._gathering is not None
        others = len(self._gathering.counts) // len(self._gathered_sizes)
        parts = gathered.split([others * 2 * n * channels for channels in self._gathered_sizes])
        whole = [part.view(others, 2, n, channels) for part, channels in zip(parts, self._gathered_sizes, strict=True)]
        return torch.cat(whole, -1).unflatten(-1, (-1, self._of_group))
