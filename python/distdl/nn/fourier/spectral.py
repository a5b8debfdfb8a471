"""The convolution of Fourier neural operators over blocks: only kept frequencies travel."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from typing import Annotated, ClassVar

import torch

from distdl import operators
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Device, Dtype, HasBias, Positive, PositiveSizes, choice, option, with_options
from distdl.nn.base.precision import lowered
from distdl.nn.fourier import sequential
from distdl.nn.fourier.modes import NORMS, Modes
from distdl.nn.kernels.fourier_slices import concatenated
from distdl.operators.dispatch import CompletedCall, Operator, Started
from distdl.partitions.boxes import block_intervals, cut

__all__ = ["SpectralConv1d", "SpectralConv2d", "SpectralConv3d", "SpectralConv4d"]

_SPECTRAL_CONV = """Multiplies each low frequency of an input in blocks by its matrix of weights.

Each worker transforms its block: whole dimensions by torch.fft, split dimensions to its terms of the kept frequencies.
A reduce-scatter of the terms gives each worker a block of the kept frequencies. It multiplies them by its block of the
weight; all workers gather the products, and each transforms them back to its block.

Args:
    P_x: the partition of the input and of the result, ``[batch, channels, *space]`` with {dims} spatial dimensions; any
        dimension may be split.
    in_channels, out_channels: numbers of channels.
    modes: the number of kept frequencies of both signs, for each spatial dimension or as one int; the last dimension
        keeps ``modes[-1] // 2 + 1``, because the input is real.
    bias: whether to add a number to each channel.
    norm: of the transforms, as in torch.fft.
    device, dtype: of the parameters.
    parts: the number of groups of channels. A group of frequencies travels during the transform of the next group.

Shape:
    ``(N, in_channels, *space)`` to ``(N, out_channels, *space)``; batch and space in any blocks, channels in balanced
    blocks. The result has the input's blocks. Zero volume on all ranks outside of P_x.

Attributes:
    weight: this worker's block of the weight ``(in_channels, out_channels, *kept, 2)``, with real and imaginary parts
        in the last dimension. Input channels and frequencies are in balanced blocks along their dimensions of P_x.
        Workers along the batch use the same block: see :func:`distdl.parameter_layout`.
    bias: this worker's block of the bias ``(out_channels, 1, ...)``; None without bias.

Raises:
    ValueError: on all ranks, if P_x has another number of dimensions, or the input has too few elements along a
        dimension for the kept frequencies.
    TypeError, RuntimeError: on all ranks, if an option or the dtype of the input is invalid.

P workers in space have K complex numbers together (batch, channels, kept frequencies); each worker sends (P - 1) / P of
K to sum the input's, and as many to gather the result's. ``from_sequential`` takes
``distdl.nn.fourier.sequential.SpectralConv{dims}d``, the same layer in one process, with the same parameter names.

Collective: constructing over P_x's parent communicator, calling over P_x.

Source: Z. Li et al., "Fourier Neural Operator for Parametric Partial Differential Equations" (2021); the modes follow
``neuralop.layers.spectral_convolution.SpectralConv``.
"""


@with_options
class _SpectralConv(Layer):
    """The layer for any number of spatial dimensions."""

    in_channels: Positive
    out_channels: Positive
    modes: PositiveSizes
    bias: HasBias = option(default=True)
    norm: Annotated[str, choice(*NORMS, error=RuntimeError)] | None = "forward"
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    parts: Positive = 1
    dims: ClassVar[int]

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        return (getattr(sequential, f"SpectralConv{cls.dims}d"),)

    def check_options(self) -> None:
        rule = f"it needs {self.dims + 2} dimensions: batch, channels and {self.dims} in space"
        self.check_shape(self.grid.dim == self.dims + 2, rule)
        self._kept = sequential.kept_modes(self.modes)
        space = range(2, self.dims + 2)
        scale = sequential.initial_scale(self.in_channels, self.out_channels)
        self.declare_parameter(
            "weight", self.P_x, (self.in_channels, self.out_channels, *self._kept, 2), (1, None, *space, None),
            initialize=partial(torch.nn.init.normal_, mean=0.0, std=scale * 0.5**0.5),
        )  # fmt: skip
        self.declare_parameter(
            "bias", self.P_x, (self.out_channels, *[1] * self.dims), (1, *[None] * self.dims),
            initialize=partial(torch.nn.init.normal_, mean=0.0, std=scale), exists=self.passed["bias"],
        )  # fmt: skip

    def prepare(self) -> None:
        shape = self.grid.shape
        self._split = [d for d in range(2, self.dims + 2) if self.grid.known and shape[d] > 1]
        parts = range(self.parts if self._split else 1)
        self._sums = [operators.reduce_scatter(self.P_x, self._split) for _ in parts if self._split]
        self._gatherings = [operators.all_gather(self.P_x, self._split) for _ in parts if self._split]
        splits_channels = self.grid.known and shape[1] > 1
        self._over_channels = operators.reduce_scatter(self.P_x, [1]) if splits_channels else None

    def set_up(self) -> None:
        name, sizes = type(self).__name__, self.blocks(self.grid)
        self.check_balanced(1, self.in_channels, "in_channels")
        if sum(sizes[1]) != self.in_channels:
            raise ValueError(f"{name}: the input has {sum(sizes[1])} channels; in_channels={self.in_channels}")
        dtype = self.structure(self.grid)[0][1]
        lowers = self.autocast is not None and dtype != torch.float64
        if not dtype.is_floating_point or (dtype != self.weight.dtype and not lowers):
            raise RuntimeError(
                f"{name}: the input is of {dtype}, the weight of {self.weight.dtype}; they must be equal"
            )
        if self.weight.dtype not in ((torch.float32,) if lowers else (torch.float32, torch.float64)):
            raise RuntimeError(
                f"{name}: the weight is of {self.weight.dtype}; torch multiplies complex numbers of single and double "
                "precision (autocast computes in torch.float32)"
            )
        self._modes = []
        for d, (along, kept) in enumerate(zip(sizes[2:], self._kept, strict=True), start=2):
            n, is_half = sum(along), d == self.dims + 1
            if kept > (n // 2 + 1 if is_half else n):
                raise ValueError(f"{name}: the input has {n} elements in dimension {d}, too few for modes={self.modes}")
            block = block_intervals(along)[self.grid.place[d]] if d in self._split and self.grid.active else None
            self._modes.append(Modes(d, n, kept, is_half, self.norm, block))

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        arriving = self.start_parameters()
        with torch.autocast(input.device.type, enabled=False):
            x = lowered(input, None if self.autocast is None else torch.float32)
            x = concatenated([started.wait() for started in self._summed(x)], 1)
            weight, *bias = arriving()
            y = sequential.contract_channels(x, weight)
            y = y if self._over_channels is None else self._over_channels(y)
            y = concatenated([self._backward(started.wait()) for started in self._gathered(y)], 1)
            return y + bias[0] if bias else y

    def _summed(self, x: torch.Tensor) -> list[Started]:
        """Send the kept frequencies of groups of channels; each worker receives a block of their sums."""
        started = []
        for i, (start, stop) in enumerate(cut(x.shape[1], max(len(self._sums), 1))):
            part = self._forward(x[:, start:stop])
            started.append(self._start(self._sums[i], part) if self._sums else CompletedCall("sum", part))
        return started

    def _gathered(self, y: torch.Tensor) -> list[Started]:
        if not self._gatherings:
            return [CompletedCall("gathering", y)]
        groups = cut(y.shape[1], len(self._gatherings))
        return [
            self._start(gather, y[:, start:stop])
            for gather, (start, stop) in zip(self._gatherings, groups, strict=True)
        ]

    def _start(self, operator: Operator, x: torch.Tensor) -> Started:
        return operator.start(x) if self.parts > 1 else CompletedCall(operator.name, operator(x))

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the last dimension first, because it is real, then whole dimensions."""
        *others, last = self._modes
        for modes in (last, *sorted(others, key=lambda modes: modes.block is not None)):
            x = modes.transform(x)
        return x

    def _backward(self, y: torch.Tensor) -> torch.Tensor:
        *others, last = self._modes
        for modes in (*sorted(others, key=lambda modes: modes.block is None), last):
            y = modes.inverse(y)
        return y


def _spectral_conv(dims: int) -> type[_SpectralConv]:
    text = _SPECTRAL_CONV.format(dims=dims)
    return type(f"SpectralConv{dims}d", (_SpectralConv,), {"dims": dims, "__doc__": text, "__module__": __name__})


SpectralConv1d, SpectralConv2d, SpectralConv3d, SpectralConv4d = (_spectral_conv(dims) for dims in (1, 2, 3, 4))
