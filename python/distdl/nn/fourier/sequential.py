"""The spectral convolution in one process by torch.fft, equal to the layer over blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from distdl.nn.fourier.modes import Modes


def kept_modes(modes: Sequence[int]) -> tuple[int, ...]:
    """The numbers of kept frequencies: half in the last dimension, because the input is real."""
    return (*modes[:-1], modes[-1] // 2 + 1)


def initial_scale(in_channels: int, out_channels: int) -> float:
    """The standard deviation of the initial values of a spectral convolution."""
    return (2 / (in_channels + out_channels)) ** 0.5


class SpectralConv(torch.nn.Module):
    """The convolution of a Fourier neural operator: each kept frequency has its own matrix over the channels.

    Args:
        in_channels, out_channels: numbers of channels.
        modes: the number of kept frequencies, negative and positive, for each spatial dimension or as an int; the last
            dimension keeps ``modes[-1] // 2 + 1``, because the input is real.
        bias: whether output channels have a learnable bias.
        norm: of the transforms, as in torch.fft, whose default is another one.
        device, dtype: of the parameters.

    Shape:
        ``(N, in_channels, *space)`` to ``(N, out_channels, *space)``.

    Attributes:
        weight: ``(in_channels, out_channels, *kept, 2)``: real and imaginary parts, as dtypes, optimizers and
            checkpoints expect. Frequencies of k modes ascend from ``-(k // 2)``, in the
            last dimension from 0.
        bias: ``(out_channels, 1, ...)``, or None.

    Source: Z. Li et al., "Fourier Neural Operator for Parametric Partial Differential Equations" (2021); the modes
    follow ``neuralop.layers.spectral_convolution.SpectralConv``.
    """

    dims: ClassVar[int]
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        modes: int | Sequence[int],
        bias: bool = True,
        norm: str | None = "forward",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.norm = in_channels, out_channels, norm
        self.modes = (modes,) * self.dims if isinstance(modes, int) else tuple(modes)
        shape = (in_channels, out_channels, *kept_modes(self.modes), 2)
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = None
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(out_channels, *[1] * self.dims, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        scale = initial_scale(self.in_channels, self.out_channels)
        torch.nn.init.normal_(self.weight, 0.0, scale * 0.5**0.5)
        if self.bias is not None:
            torch.nn.init.normal_(self.bias, 0.0, scale)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        space = input.shape[2:]
        kept = kept_modes(self.modes)
        modes = [
            Modes(dim=d + 2, n=n, kept=k, is_half=d + 1 == self.dims, norm=self.norm, block=None)
            for d, (n, k) in enumerate(zip(space, kept, strict=True))
        ]
        x = input
        for mode in reversed(modes):
            x = mode.transform(x)
        y = contract_channels(x, self.weight)
        for mode in modes:
            y = mode.inverse(y)
        return y if self.bias is None else y + self.bias


def contract_channels(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product of each frequency's channels with its matrix."""
    return torch.einsum("bi...,io...->bo...", x, torch.complex(weight[..., 0], weight[..., 1]))


def _in_dims(dims: int) -> type[SpectralConv]:
    return type(f"SpectralConv{dims}d", (SpectralConv,), {"dims": dims, "__doc__": SpectralConv.__doc__})


SpectralConv1d, SpectralConv2d, SpectralConv3d, SpectralConv4d = (_in_dims(dims) for dims in (1, 2, 3, 4))
