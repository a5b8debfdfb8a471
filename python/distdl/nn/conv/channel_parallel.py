"""Convolutions with input and output in blocks of channels on a single partition."""

from __future__ import annotations

from typing import ClassVar

import torch

from distdl import operators
from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import with_options
from distdl.nn.conv.conv import ConvOptions, DistributedConv1d, DistributedConv2d, DistributedConv3d
from distdl.nn.conv.grid import ConvGrid
from distdl.nn.conv.layer import ConvLayer
from distdl.nn.conv.transposed import (
    DistributedConvTranspose1d,
    DistributedConvTranspose2d,
    DistributedConvTranspose3d,
    TransposeOptions,
)

__all__ = [
    "DistributedChannelAllGatherConv1d",
    "DistributedChannelAllGatherConv2d",
    "DistributedChannelAllGatherConv3d",
    "DistributedChannelAllGatherConvTranspose1d",
    "DistributedChannelAllGatherConvTranspose2d",
    "DistributedChannelAllGatherConvTranspose3d",
    "DistributedChannelReduceScatterConv1d",
    "DistributedChannelReduceScatterConv2d",
    "DistributedChannelReduceScatterConv3d",
    "DistributedChannelReduceScatterConvTranspose1d",
    "DistributedChannelReduceScatterConvTranspose2d",
    "DistributedChannelReduceScatterConvTranspose3d",
]


class _ChannelParallelConv(ConvLayer):
    """A convolution whose workers have a block of the channels of input and output.

    Attributes:
        gathers: whether input channels are gathered; otherwise the terms of output channels are reduced and scattered.
    """

    gathers: ClassVar[bool]

    def _workers(self, name: str) -> ConvGrid:
        return ConvGrid.of_form(name, self.dims, self.groups, self.grid, self.gathers)

    def _check_form(self) -> None:
        """Nothing to check: there is only P_x."""

    def _summation(self) -> operators.Operator | None:
        return operators.reduce_scatter(self.grid, [self._grid.batched]) if self._grid.p_in > 1 else None

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        return (getattr(torch.nn, f"Conv{'Transpose' if cls.transposed else ''}{cls.dims}d"),)


@with_options
class _GatheringConv(_ChannelParallelConv, ConvOptions):
    gathers = True


@with_options
class _ScatteringConv(_ChannelParallelConv, ConvOptions):
    gathers = False


@with_options
class _GatheringTranspose(_ChannelParallelConv, TransposeOptions):
    gathers = True


@with_options
class _ScatteringTranspose(_ChannelParallelConv, TransposeOptions):
    gathers = False


_CHANNEL_CONV_DOC = """Applies a {dims}-d {title} to blocks of channels: ``torch.nn.{twin}``.

    {how}

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``, of any shape.
        in_channels, out_channels, kernel_size and all other arguments: as in ``torch.nn.{twin}``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the stride allows.

    Shape:
        ``(N, in_channels, *space)`` or ``(in_channels, *space)``, as P_x, in any blocks. The result of torch.nn is in
        the same blocks of batch, in balanced blocks of channels, and in balanced or aligned blocks of space. Zero
        volume on all other ranks. With groups nothing is gathered or summed; blocks of channels must be whole groups.

    Attributes:
        weight: this worker's balanced block of the weight, {weight}.
        bias: {bias}; None without bias.

    Raises:
        ValueError: on all ranks, if P_x or an option is not as described.
        RuntimeError: on all ranks, if the input has a wrong number of channels or dtype, or is smaller than the kernel.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.{twin}.html.
    """
_GATHERING = {
    "how": "Each worker receives all channels of its inputs, and computes its channels of the result.",
    "weight": "cut along the output channels",
    "bias": "this worker's balanced block of the bias",
}
_SCATTERING = {
    "how": "Each worker computes terms of all output channels from its input channels; a reduce-scatter adds them.",
    "weight": "cut along the input channels",
    "bias": "the whole bias on the workers with index 0 along the channels, which add it; empty elsewhere",
}
_CONVS = (DistributedConv1d, DistributedConv2d, DistributedConv3d)
_TRANSPOSES = (DistributedConvTranspose1d, DistributedConvTranspose2d, DistributedConvTranspose3d)
_CHANNEL_CONV = {"title": "convolution", "twin": "Conv{dims}d"}
_TRANSPOSE = {"title": "transposed convolution", "twin": "ConvTranspose{dims}d"}

DistributedChannelAllGatherConv1d, DistributedChannelAllGatherConv2d, DistributedChannelAllGatherConv3d = family(
    "DistributedChannelAllGatherConv{dims}d",
    _CHANNEL_CONV_DOC,
    _GatheringConv,
    _CONVS,
    **_CHANNEL_CONV,
    **_GATHERING,
)
(
    DistributedChannelAllGatherConvTranspose1d,
    DistributedChannelAllGatherConvTranspose2d,
    DistributedChannelAllGatherConvTranspose3d,
) = family(
    "DistributedChannelAllGatherConvTranspose{dims}d", _CHANNEL_CONV_DOC, _GatheringTranspose, _TRANSPOSES,
    **_TRANSPOSE, **_GATHERING,
)  # fmt: skip
(
    DistributedChannelReduceScatterConv1d,
    DistributedChannelReduceScatterConv2d,
    DistributedChannelReduceScatterConv3d,
) = family(
    "DistributedChannelReduceScatterConv{dims}d",
    _CHANNEL_CONV_DOC,
    _ScatteringConv,
    _CONVS,
    **_CHANNEL_CONV,
    **_SCATTERING,
)
(
    DistributedChannelReduceScatterConvTranspose1d,
    DistributedChannelReduceScatterConvTranspose2d,
    DistributedChannelReduceScatterConvTranspose3d,
) = family(
    "DistributedChannelReduceScatterConvTranspose{dims}d", _CHANNEL_CONV_DOC, _ScatteringTranspose, _TRANSPOSES,
    **_TRANSPOSE, **_SCATTERING,
)  # fmt: skip
