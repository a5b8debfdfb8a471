"""Convolution over blocks in space."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from distdl._load import _core
from distdl.construction import constructing
from distdl.nn.window import WindowLayer, per_dimension
from distdl.parameters import Layout, ParameterBroadcast, kind_of, reset_like_linear, uniform_, zero_of


class _DistributedConv(WindowLayer):
    _functions = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

    def __init__(
        self,
        P_x: Any,
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
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.padding_mode = padding_mode
        options = {
            "in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel_size, "stride": stride,
            "padding": padding, "dilation": dilation, "groups": groups, "bias": bias, "padding_mode": padding_mode,
            "device": kind_of(device), "dtype": dtype,
        }  # fmt: skip
        with constructing(type(self).__name__, {"P_x": P_x}, options) as (self.P_x,):
            self._check_partition(self.P_x, split_channels=False)
            self._check_channels()
            self.kernel_size = per_dimension(kernel_size, self.dims, "kernel_size")
            self.stride = per_dimension(stride, self.dims, "stride")
            self.dilation = per_dimension(dilation, self.dims, "dilation")
            self.padding = padding if isinstance(padding, str) else per_dimension(padding, self.dims, "padding")
            windows = self._make_windows()

        self._slide(self.P_x, windows, periodic=padding_mode == "circular")
        self._parameters_to_all = ParameterBroadcast(type(self).__name__, self.P_x)
        owner = self._parameters_to_all.owner
        self._weight_shape = (out_channels, in_channels // groups, *self.kernel_size)
        block = owner._related(owner._ranks, (1,) * len(self._weight_shape))
        self._distdl_register_parameter("weight", Layout(block, self._weight_shape), dtype, device)
        if bias:
            self._distdl_register_parameter("bias", Layout(owner, (out_channels,)), dtype, device)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _check_channels(self) -> None:
        name = type(self).__name__
        if self.groups < 1:
            raise ValueError(f"{name}: groups={self.groups}; it must be at least 1")
        for channels in ("in_channels", "out_channels"):
            if getattr(self, channels) % self.groups != 0:
                raise ValueError(
                    f"{name}: {channels}={getattr(self, channels)} is not divisible by groups={self.groups}"
                )
        if self.padding_mode not in ("zeros", "circular"):
            kind = NotImplementedError if self.padding_mode in ("reflect", "replicate") else ValueError
            raise kind(f"{name}: padding_mode={self.padding_mode!r}; 'zeros' and 'circular' are implemented")

    def _make_windows(self) -> list[_core.Window]:
        name = type(self).__name__
        if isinstance(self.padding, str):
            if self.padding not in ("valid", "same"):
                raise ValueError(f"{name}: padding={self.padding!r}; as a string it must be 'valid' or 'same'")
            if self.padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"{name}: padding='same' is not supported for strided convolutions")
        if any(s < 1 for s in (*self.stride, *self.dilation, *self.kernel_size)):
            raise RuntimeError(
                f"{name}: kernel_size={self.kernel_size}, stride={self.stride}, dilation={self.dilation}; all must be "
                "at least 1"
            )
        windows = []
        for d, (kernel, stride, dilation) in enumerate(zip(self.kernel_size, self.stride, self.dilation, strict=True)):
            if isinstance(self.padding, str):
                total = dilation * (kernel - 1) if self.padding == "same" else 0
                sides = (total // 2, total - total // 2)  # the longer side on the right, as torch.nn has it
            else:
                sides = (self.padding[d], self.padding[d])
                if sides[0] < 0:
                    raise RuntimeError(f"{name}: padding={self.padding}; it must not be negative")
            windows.append(_core.Window(kernel, stride, sides, dilation))
        return windows

    def reset_parameters(self) -> None:
        """Draw the parameters as torch.nn's convolution does; every rank has to call it, with the same seed."""
        bound = reset_like_linear(self.weight, self._distdl_layouts["weight"])
        if self.bias is not None:
            uniform_(self.bias, self._distdl_layouts["bias"], bound)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer. Collective over the workers of P_x."""
        read = self._exchange(input)
        if not self.P_x.active:
            return read + sum(zero_of(parameter) for parameter in self.parameters())
        self._check_extents(self.dims)
        self._check_input(read)
        owned = [(self.weight, self._weight_shape)]
        if self.bias is not None:
            owned.append((self.bias, (self.out_channels,)))
        weight, *biases = self._parameters_to_all(*owned)
        bias = biases[0] if biases else None
        if read.dtype != weight.dtype and not torch.is_autocast_enabled("cpu"):  # now all have worker 0's dtype
            raise RuntimeError(f"{type(self).__name__}: the input is {read.dtype} but the weight {weight.dtype}")

        def compute(x: torch.Tensor) -> torch.Tensor:
            function = self._functions[self.dims]
            return function(x, weight, bias, self.stride, 0, self.dilation, self.groups)

        return self._apply_locally(self.P_x, compute, read, self.out_channels)

    def _check_input(self, read: torch.Tensor) -> None:
        """What torch.nn refuses; true or false on all workers alike, since they share channels and extents."""
        name, channels = type(self).__name__, read.shape[-self.dims - 1]
        if channels != self.in_channels:
            raise RuntimeError(
                f"{name}: the input of shape {self._input_extents()} has {channels} channels; expected "
                f"in_channels={self.in_channels}"
            )
        if self.padding_mode == "circular":
            for n, window in zip(self._input_extents()[-self.dims :], self._windows, strict=True):
                if max(window.padding) > n:
                    raise RuntimeError(
                        f"{name}: circular padding {window.padding} of {n} elements would wrap more than once"
                    )

    def extra_repr(self) -> str:
        """Sizes, options and the partition."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, bias={self.bias is not None}, "
            f"padding_mode={self.padding_mode}, P_x={self.P_x}"
        )


_DOCUMENTATION = """Applies a {dims}-d convolution to a tensor split in space: ``torch.nn.Conv{dims}d``, put together.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``; channels must
            be 1.
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype: as in
            ``torch.nn.Conv{dims}d``.
        padding_mode: 'zeros' or 'circular'.

    Shape:
        ``(N, in_channels, *space)`` or ``(in_channels, *space)``, as P_x has dimensions, in any blocks; out comes
        what ``torch.nn.Conv{dims}d`` gives, in the batch's blocks and in balanced blocks of space. Zero volume on all
        other ranks.

    Attributes:
        weight: the whole weight on worker 0 of P_x, which owns it; zero volume on all other ranks.
        bias: likewise; None without bias.

    Raises:
        ValueError: on all ranks, if the partition or an option is not as described.
        RuntimeError: on all workers, if the input has other channels or another dtype, or is smaller than the kernel.

    Constructing is collective over the communicator that P_x comes from, calling over its workers. The weight travels
    to all workers in one broadcast, whose adjoint sums the gradients.

    Source: R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model Parallelism in Deep Learning" (2020);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Conv{dims}d.html.
    """


class DistributedConv1d(_DistributedConv):
    __doc__ = _DOCUMENTATION.format(dims=1)
    dims = 1


class DistributedConv2d(_DistributedConv):
    __doc__ = _DOCUMENTATION.format(dims=2)
    dims = 2


class DistributedConv3d(_DistributedConv):
    __doc__ = _DOCUMENTATION.format(dims=3)
    dims = 3
