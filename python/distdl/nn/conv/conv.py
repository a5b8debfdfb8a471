"""Convolution over blocks of batch, channels and space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, TypeAlias

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import (
    Check,
    Converted,
    Count,
    Device,
    Dtype,
    FurtherPartition,
    HasBias,
    PartitionsFirst,
    PositiveSizes,
    Size,
    choice,
    common_options,
    option,
    with_partitions_first,
)
from distdl.nn.base.options import per_dimension
from distdl.nn.conv.layer import ConvLayer
from distdl.nn.kernels.convolution import conv3d
from distdl.nn.windows.blocks import naming_layer

__all__ = [
    "DistributedChannelConv1d",
    "DistributedChannelConv2d",
    "DistributedChannelConv3d",
    "DistributedConv1d",
    "DistributedConv2d",
    "DistributedConv3d",
    "DistributedFeatureConv1d",
    "DistributedFeatureConv2d",
    "DistributedFeatureConv3d",
    "DistributedGeneralConv1d",
    "DistributedGeneralConv2d",
    "DistributedGeneralConv3d",
]


def _padding(layer: ConvLayer, value: object, name: str) -> str | tuple[int, ...]:
    if not isinstance(value, str):
        return per_dimension(type(layer).__name__, value, layer.dims, name)
    if value not in ("valid", "same"):
        raise ValueError(f"{type(layer).__name__}: {name}={value!r}; as a string it must be 'valid' or 'same'")
    return value


Padding: TypeAlias = Annotated[Converted[str | tuple[int, ...], Size | str], Check(_padding)]
PaddingMode: TypeAlias = Annotated[str, choice("zeros", "reflect", "replicate", "circular")]


@common_options
class ConvOptions(ConvLayer):
    """The options of convolutions."""

    padding: Padding = option(default=0)
    dilation: PositiveSizes = option(default=1)
    groups: Count = 1
    bias: HasBias = option(default=True)
    padding_mode: PaddingMode = "zeros"
    device: Device = None
    dtype: Dtype = None


@with_partitions_first
class _DistributedConv(PartitionsFirst, ConvOptions):
    _: KW_ONLY
    P_y: FurtherPartition = option(default=None)
    P_w: FurtherPartition = option(default=None)
    functions = {1: F.conv1d, 2: F.conv2d, 3: conv3d}

    def _check_padding(self, name: str) -> None:
        if isinstance(self.padding, str):
            if self.padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"{name}: padding='same' is not supported for strided convolutions")
        elif self.padding_mode == "zeros" and min(self.padding) < 0:
            raise RuntimeError(f"{name}: padding={self.padding}; it must not be negative")

    def _windows(self, extents: list[int]) -> list[_core.Window]:
        name, windows = type(self).__name__, []
        for d, options in enumerate(zip(self.kernel_size, self.stride, self.dilation, strict=True)):
            kernel, stride, dilation = options
            windows.append(_core.Window(kernel, stride, self._sides(d), dilation))
        if self.padding_mode != "zeros":
            sides = [side for window in reversed(windows) for side in window.padding]
            with naming_layer(name):
                F.pad(torch.empty(1, 1, *extents, device="meta"), sides, self.padding_mode)
        for d, (n, window) in enumerate(zip(extents, windows, strict=True)):
            if window.outputs(n) < 1:
                raise RuntimeError(
                    f"{name}: the input has {n} elements in spatial dimension {d}, padded by {window.padding}; a "
                    f"kernel of {self.kernel_size[d]} with dilation={self.dilation[d]} does not fit"
                )
        return windows

    def _sides(self, d: int) -> tuple[int, int]:
        if not isinstance(self.padding, str):
            return (self.padding[d], self.padding[d])
        total = self.dilation[d] * (self.kernel_size[d] - 1) if self.padding == "same" else 0
        return (total // 2, total - total // 2)  # the longer side on the right, as in torch.nn

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        return self.convolve_blocks(input)

    def convolve(
        self,
        read: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: Sequence[int],
        along: Sequence[int] | None = None,
    ) -> torch.Tensor:
        dims, stride, dilation = self.dims, self.stride, self.dilation
        if along is not None:
            dims = len(along)
            stride, dilation = (tuple(option[d] for d in along) for option in (stride, dilation))
        groups = read.shape[-dims - 1] // weight.shape[1]
        return self.functions[dims](read, weight, bias, stride, padding, dilation, groups)


_CONV_DOC = """Applies a {dims}-d convolution to a partitioned tensor: ``torch.nn.Conv{dims}d`` in blocks.
{form}
    Args:
{partitions}
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype: as
            in ``torch.nn.Conv{dims}d``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the stride allows.

    Shape:
        ``(N, in_channels, *space)`` or ``(in_channels, *space)``, as P_x, in any blocks. The result of torch.nn is in
        the same blocks of batch, in balanced blocks of channels, and in balanced or aligned blocks of space.

    Attributes:
        weight: the balanced block of the weight that this worker owns; zero volume on all other ranks.{owner}
        bias: the balanced block of the bias that this worker owns; None without bias.

    Raises:
        ValueError: on all ranks, if the partitions or an option are not as described.
        RuntimeError: on all ranks, if the input has other channels or another dtype, or is smaller than the kernel.

    Collective: constructing over the partitions' parent communicator, calling over the partitions. One broadcast brings
    each block of the weight to the workers that apply it; its adjoint sums the gradients.

    Source: R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model Parallelism in Deep Learning" (2020);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv{dims}d.html.
    """
_P_X = """        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]`` with
            1 for channels."""
_P_XYW = """        P_x: the partition of the input: ``[batch, p_in, *space]``, or without batch.
        P_y: the partition of the output: ``[batch, p_out, *space]``, likewise.
        P_w: the workers that compute: ``[batch, p_out, p_in, *space]``. Worker ``(b, i, j, *s)`` applies block (i, j)
            of the weight, which worker (0, i, j, 0, ...) owns, and results are summed over j. P_w may be
            ``[p_out, p_in, *space]`` if batch is 1, and ``[p_out, p_in]`` if space is 1, too. With groups, P_x is
            ``[batch, p, *space]`` like P_y, P_w is ``[batch, p, 1, *space]``, and blocks of channels must be whole
            groups."""
_SPACE = """
    Space and batch may be split. The weight is on one worker.
"""
_CHANNELS = """
    Channels and batch may be split, not space: the extents of P_x, P_y and P_w in space must be 1.
"""
_ALL = """
    Batch, channels and space may be split, all at once.
"""
_EITHER = """
    With P_x alone, the layer splits space and batch, as :class:`DistributedFeatureConv{dims}d` does. With P_x, P_y and
    P_w, in this order before all other arguments or by name, it splits channels, too, as
    :class:`DistributedGeneralConv{dims}d` does.
"""
_OWNER = "\n            With P_x alone, worker 0 of P_x owns all of it."


class _SplitsSpace(_DistributedConv):
    def _check_form(self) -> None:
        if self.P_y is not None or self.P_w is not None:
            raise ValueError(f"{type(self).__name__}: takes one partition, P_x; P_y and P_w are for split channels")


class _SplitsAll(_DistributedConv):
    def _check_form(self) -> None:
        if self.P_y is None or self.P_w is None:
            raise ValueError(f"{type(self).__name__}: needs three partitions: P_x, P_y and P_w")


class _SplitsChannels(_SplitsAll):
    def _check_grid(self) -> None:
        splits_space = self._grid.known and any(workers != 1 for workers in self._grid.space)
        self.check_shape(not splits_space, "only channels and batch may be partitioned, all of space must be 1")


_CONV = family("DistributedConv{dims}d", _CONV_DOC, _DistributedConv, form=_EITHER, partitions=_P_XYW, owner=_OWNER)
DistributedConv1d, DistributedConv2d, DistributedConv3d = _CONV
DistributedFeatureConv1d, DistributedFeatureConv2d, DistributedFeatureConv3d = family(
    "DistributedFeatureConv{dims}d",
    _CONV_DOC,
    _SplitsSpace,
    _CONV,
    form=_SPACE,
    partitions=_P_X,
    owner=_OWNER,
)
DistributedChannelConv1d, DistributedChannelConv2d, DistributedChannelConv3d = family(
    "DistributedChannelConv{dims}d",
    _CONV_DOC,
    _SplitsChannels,
    _CONV,
    form=_CHANNELS,
    partitions=_P_XYW,
    owner="",
)
DistributedGeneralConv1d, DistributedGeneralConv2d, DistributedGeneralConv3d = family(
    "DistributedGeneralConv{dims}d", _CONV_DOC, _SplitsAll, _CONV, form=_ALL, partitions=_P_XYW, owner=""
)
