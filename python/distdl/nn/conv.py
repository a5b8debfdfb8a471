"""Convolution over blocks of batch, channels and space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from distdl._load import _core
from distdl.construction import constructor
from distdl.nn.boundary import as_of
from distdl.nn.conv_kernels import conv3d
from distdl.nn.conv_layer import ConvLayer, split_partitions
from distdl.nn.window import per_dimension


class _DistributedConv(ConvLayer):
    _functions = {1: F.conv1d, 2: F.conv2d, 3: conv3d}

    @constructor
    def __init__(self, P_x: Any, *arguments: Any, **options: Any) -> None:
        super().__init__()
        P_y, P_w, others = split_partitions(arguments, options)
        self._set_up(P_x, P_y, P_w, *others, **options)

    @constructor
    def _set_up(
        self,
        P_x: Any,
        P_y: Any,
        P_w: Any,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | str | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        output_blocks: str = "balanced",
    ) -> None:
        options = {"stride": stride, "padding": padding, "dilation": dilation, "padding_mode": padding_mode}
        self._construct(
            P_x, P_y, P_w, in_channels, out_channels, kernel_size, groups, bias, device, dtype, output_blocks, options
        )  # fmt: skip

    def _check_options(self, stride: Any, padding: Any, dilation: Any, padding_mode: str) -> None:  # type: ignore[override]
        name = type(self).__name__
        self.stride = per_dimension(name, stride, self.dims, "stride")
        self.dilation = per_dimension(name, dilation, self.dims, "dilation")
        self.padding = padding if isinstance(padding, str) else per_dimension(name, padding, self.dims, "padding")
        self.padding_mode = padding_mode
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                f"{name}: padding_mode={padding_mode!r}; it must be 'zeros', 'reflect', 'replicate' or 'circular'"
            )
        if isinstance(self.padding, str):
            if self.padding not in ("valid", "same"):
                raise ValueError(f"{name}: padding={self.padding!r}; as a string it must be 'valid' or 'same'")
            if self.padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"{name}: padding='same' is not supported for strided convolutions")
        elif padding_mode == "zeros" and min(self.padding) < 0:
            raise RuntimeError(f"{name}: padding={self.padding}; it must not be negative")

    def _windows(self) -> list[_core.Window]:
        windows = []
        for d, (kernel, stride, dilation) in enumerate(zip(self.kernel_size, self.stride, self.dilation, strict=True)):
            if isinstance(self.padding, str):
                total = dilation * (kernel - 1) if self.padding == "same" else 0
                sides = (total // 2, total - total // 2)  # the longer side on the right, as torch.nn has it
            else:
                sides = (self.padding[d], self.padding[d])
            windows.append(_core.Window(kernel, stride, sides, dilation))
        return windows

    def _slide(self, extents: list[int], *_: Any) -> list[_core.Window]:
        name, windows = type(self).__name__, self._windows()
        if self.padding_mode != "zeros":
            sides = [side for window in reversed(windows) for side in window.padding]
            with as_of(name):
                F.pad(torch.empty(1, 1, *extents, device="meta"), sides, self.padding_mode)
        for d, (n, window) in enumerate(zip(extents, windows, strict=True)):
            if window.outputs(n) < 1:
                raise RuntimeError(
                    f"{name}: the input has {n} elements in spatial dimension {d}, padded by {window.padding}; a "
                    f"kernel of {self.kernel_size[d]} with dilation={self.dilation[d]} does not fit"
                )
        return windows

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer. Collective over the ranks of its partitions."""
        return self._convolve(input)

    def _compute(
        self,
        read: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: Sequence[int],
        along: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The local layer, with this padding; along some of the dimensions of space, if they are given."""
        along = range(self.dims) if along is None else along
        stride, dilation = ([option[d] for d in along] for option in (self.stride, self.dilation))
        groups = read.shape[-len(along) - 1] // weight.shape[1]
        return self._functions[len(along)](read, weight, bias, stride, padding, dilation, groups)

    def extra_repr(self) -> str:
        """Sizes, options and partitions."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, bias={self.bias is not None}, "
            f"padding_mode={self.padding_mode}, {self._blocks_and_partitions()}"
        )


_DOCUMENTATION = """Applies a {dims}-d convolution to a tensor in blocks: ``torch.nn.Conv{dims}d``, put together.
{form}
    Args:
{partitions}
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype: as
            in ``torch.nn.Conv{dims}d``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input's are, as far as the stride lets it.

    Shape:
        ``(N, in_channels, *space)`` or ``(in_channels, *space)``, as P_x has dimensions, in any blocks; out comes
        what ``torch.nn.Conv{dims}d`` gives, in the batch's blocks, in balanced blocks of channels, and in balanced or
        aligned blocks of space. Zero volume on all other ranks.

    Attributes:
        weight: the balanced block of the weight that this worker owns; zero volume on all other ranks.{owner}
        bias: likewise; None without bias.

    Raises:
        ValueError: on all ranks, if the partitions or an option are not as described.
        RuntimeError: on all ranks, if the input has other channels or another dtype, or is smaller than the kernel.

    Constructing is collective over the communicator that the partitions come from, calling over their ranks. Each block
    of the weight travels to the workers that apply it in one broadcast, whose adjoint sums the gradients.

    Source: R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model Parallelism in Deep Learning" (2020);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv{dims}d.html.
    """
_P_X = """        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``, of
            which channels must be 1."""
_P_XYW = """        P_x: the partition of the input: ``[batch, p_in, *space]``, or without batch.
        P_y: the partition of the output: ``[batch, p_out, *space]``, likewise.
        P_w: the workers that compute: ``[batch, p_out, p_in, *space]``. Worker ``(b, i, j, *s)`` applies block (i, j)
            of the weight, which worker (0, i, j, 0, ...) owns, and results are summed over j. It may be
            ``[p_out, p_in, *space]`` where batch is 1, and ``[p_out, p_in]`` where space is too. With groups, P_x is
            ``[batch, p, *space]`` like P_y, P_w is ``[batch, p, 1, *space]``, and blocks of channels have to be whole
            groups."""
_SPACE = """
    Space and batch may be split. The weight is on one worker.
"""
_CHANNELS = """
    Channels and batch may be split, not space: where P_x, P_y and P_w speak of space, it must be 1.
"""
_ALL = """
    Batch, channels and space may be split, all at once.
"""
_EITHER = """
    Given P_x alone, it splits space and batch as :class:`DistributedFeatureConv{dims}d` does; given P_x, P_y and P_w,
    in this order before all other arguments or by name, channels too, as :class:`DistributedGeneralConv{dims}d` does.
"""
_FIRST = "\n            With P_x alone, worker 0 of P_x owns all of it."


def _documentation(dims: int, form: str, partitions: str, owner: str = "") -> str:
    return _DOCUMENTATION.format(dims=dims, form=form.format(dims=dims), partitions=partitions, owner=owner)


class _SplitsSpace(_DistributedConv):
    _channel_partitions = "none"

    def _check_form(self) -> None:
        if self.P_w is not None:
            raise ValueError(f"{type(self).__name__}: takes one partition, P_x; P_y and P_w are for split channels")


class _SplitsAll(_DistributedConv):
    _channel_partitions = "first"

    def _check_form(self) -> None:
        if self.P_w is None:
            raise ValueError(f"{type(self).__name__}: needs three partitions: P_x, P_y and P_w")


class _SplitsChannels(_SplitsAll):
    def _check_grid(self) -> None:
        if self._grid.known and any(workers != 1 for workers in self._grid.space):
            raise ValueError(
                f"{type(self).__name__}: P_x has shape {list(self.P_x._shape)}; only channels and batch may be "
                "partitioned, all of space must be 1"
            )


class DistributedConv1d(_DistributedConv):
    __doc__ = _documentation(1, _EITHER, _P_XYW, _FIRST)
    dims = 1


class DistributedConv2d(_DistributedConv):
    __doc__ = _documentation(2, _EITHER, _P_XYW, _FIRST)
    dims = 2


class DistributedConv3d(_DistributedConv):
    __doc__ = _documentation(3, _EITHER, _P_XYW, _FIRST)
    dims = 3


class DistributedFeatureConv1d(_SplitsSpace, DistributedConv1d):
    __doc__ = _documentation(1, _SPACE, _P_X, _FIRST)


class DistributedFeatureConv2d(_SplitsSpace, DistributedConv2d):
    __doc__ = _documentation(2, _SPACE, _P_X, _FIRST)


class DistributedFeatureConv3d(_SplitsSpace, DistributedConv3d):
    __doc__ = _documentation(3, _SPACE, _P_X, _FIRST)


class DistributedChannelConv1d(_SplitsChannels, DistributedConv1d):
    __doc__ = _documentation(1, _CHANNELS, _P_XYW)


class DistributedChannelConv2d(_SplitsChannels, DistributedConv2d):
    __doc__ = _documentation(2, _CHANNELS, _P_XYW)


class DistributedChannelConv3d(_SplitsChannels, DistributedConv3d):
    __doc__ = _documentation(3, _CHANNELS, _P_XYW)


class DistributedGeneralConv1d(_SplitsAll, DistributedConv1d):
    __doc__ = _documentation(1, _ALL, _P_XYW)


class DistributedGeneralConv2d(_SplitsAll, DistributedConv2d):
    __doc__ = _documentation(2, _ALL, _P_XYW)


class DistributedGeneralConv3d(_SplitsAll, DistributedConv3d):
    __doc__ = _documentation(3, _ALL, _P_XYW)
