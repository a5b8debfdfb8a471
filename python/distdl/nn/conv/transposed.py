"""Transposed convolution over blocks of batch, channels and space."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, TypeAlias, cast

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import (
    Count,
    Device,
    Dtype,
    FurtherPartition,
    HasBias,
    NaturalSizes,
    PartitionsFirst,
    PositiveSizes,
    common_options,
    must,
    option,
    with_partitions_first,
)
from distdl.nn.conv.layer import ConvLayer
from distdl.nn.windows.blocks import naming_layer

__all__ = ["DistributedConvTranspose1d", "DistributedConvTranspose2d", "DistributedConvTranspose3d"]

TransposedPaddingMode: TypeAlias = Annotated[str, must(lambda value: value == "zeros", "be 'zeros', as in torch.nn")]


@common_options
class TransposeOptions(ConvLayer):
    """The options of transposed convolutions."""

    padding: NaturalSizes = option(default=0)
    output_padding: NaturalSizes = option(default=0)
    groups: Count = 1
    bias: HasBias = option(default=True)
    dilation: PositiveSizes = option(default=1)
    padding_mode: TransposedPaddingMode = "zeros"
    device: Device = None
    dtype: Dtype = None


@with_partitions_first
class _DistributedConvTranspose(PartitionsFirst, TransposeOptions):
    _: KW_ONLY
    P_y: FurtherPartition = option(default=None)
    P_w: FurtherPartition = option(default=None)
    functions = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
    transposed = True

    def prepare(self) -> None:
        super().prepare()
        self._used_windows: list[_core.TransposedWindow] = []  # of the last set-up, with its output padding

    def _windows(self, extents: list[int]) -> list[_core.TransposedWindow]:
        name, (output_size,) = type(self).__name__, cast(tuple[Iterable[int] | None], self.others or (None,))
        output_padding = self.output_padding if output_size is None else self._output_padding(extents, output_size)
        self._used_windows = [
            _core.TransposedWindow(*options)
            for options in zip(self.kernel_size, self.stride, self.padding, self.dilation, output_padding, strict=True)
        ]
        for n, window, stride, dilation, extra in zip(
            extents, self._used_windows, self.stride, self.dilation, output_padding, strict=True
        ):
            # torch checks it only when it computes.
            if extra >= max(stride, dilation) and not self._is_empty_batch():
                raise RuntimeError(
                    f"{name}: output_padding={output_padding}, stride={self.stride}, dilation={self.dilation}; "
                    "output_padding must be less than stride or dilation"
                )
            count = window.outputs(n)
            # For other batches, torch returns empty results in some dtypes and batch sizes.
            if count < (0 if self._is_empty_batch() else 1):
                raise RuntimeError(
                    f"{name}: {n} elements, kernel_size={self.kernel_size}, stride={self.stride}, "
                    f"padding={self.padding} and dilation={self.dilation} leave {count} outputs"
                )
        return self._used_windows

    def _is_empty_batch(self) -> bool:
        return bool(self._grid.batched) and not sum(self.blocks(self.grid)[0])

    def _output_padding(self, extents: list[int], output_size: Iterable[int]) -> tuple[int, ...]:
        """The output padding for an output of this size, by torch.nn, which raises if there is none."""
        twin = getattr(torch.nn, f"ConvTranspose{self.dims}d")
        leading = [1] * (1 + self._grid.batched)
        with naming_layer(type(self).__name__):
            padding = twin._output_padding(
                self, torch.empty(*leading, *extents, device="meta"), list(output_size), self.stride, self.padding,
                self.kernel_size, self.dims, self.dilation,
            )  # fmt: skip
        return tuple(padding)

    def compute(self, input: torch.Tensor, output_size: Sequence[int] | None = None) -> torch.Tensor:
        """Apply the layer to this rank's block of the input.

        Args:
            output_size: the size of the whole output, in space only or in all dimensions, as in torch.nn; replaces
                ``output_padding``.
        """
        return self.convolve_blocks(input)

    def convolve(
        self,
        read: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        padding: Sequence[int],
        along: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Apply the local layer to all inputs that reach this worker's outputs, and cut these out of the result."""
        # With groups, a block of the weight has the channels of whole groups.
        groups = self.groups * weight.shape[0] // self.in_channels if self._grid.grouped else 1
        ends = [
            window.first(last - 1) + window.reach()
            for window, (_, last) in zip(self._used_windows, self._inputs, strict=True)
        ]
        # Outputs after the last window: in the output padding, or between windows of a long stride.
        beyond = [max(stop - end, 0) for (_, stop), end in zip(self._outputs, ends, strict=True)]
        result = self.functions[self.dims](read, weight, bias, self.stride, padding, beyond, groups, self.dilation)
        for d, (window, (first, _), (start, stop)) in enumerate(
            zip(self._used_windows, self._inputs, self._outputs, strict=True), start=-self.dims
        ):
            if result.shape[d] != stop - start:  # else the backward pass would copy the whole gradient
                result = result.narrow(d, start - window.first(first), stop - start)
        return result


_TRANSPOSE_DOC = """Applies a {dims}-d transposed convolution: ``torch.nn.ConvTranspose{dims}d`` in blocks.

    With P_x alone, the layer splits space and batch. With P_x, P_y and P_w, in this order before all other arguments or
    by name, it splits channels, too.

    Args:
        P_x, P_y, P_w: as in :class:`DistributedConv{dims}d`.
        in_channels, out_channels, kernel_size, stride, padding: as in ``torch.nn.ConvTranspose{dims}d``.
        output_padding, groups, bias, dilation, padding_mode, device, dtype: likewise.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the stride allows.

    Shape:
        ``(N, in_channels, *space)`` or ``(in_channels, *space)``, as P_x, in any blocks. The result of torch.nn is in
        the same blocks of batch, in balanced blocks of channels, and in balanced or aligned blocks of space.

    Attributes:
        weight: the balanced block of the weight (in_channels, out_channels / groups, ...) that this worker owns; zero
            volume on all other ranks. With P_x alone, worker 0 of P_x owns the whole weight.
        bias: the balanced block of the bias that this worker owns; None without bias.

    Raises:
        ValueError: on all ranks, if the partitions or an option are not as described, or no output padding gives
            ``output_size``.
        RuntimeError: on all ranks, if the input has other channels or another dtype, or the output of a
            nonempty batch would be empty. torch accepts that in float32 for two samples and more, and in bfloat16; this
            package does not.

    Each worker receives the inputs that reach its outputs, applies the local layer to them without padding, and cuts
    its block out of the result. Collective like :class:`DistributedConv{dims}d`.
    """

DistributedConvTranspose1d, DistributedConvTranspose2d, DistributedConvTranspose3d = family(
    "DistributedConvTranspose{dims}d", _TRANSPOSE_DOC, _DistributedConvTranspose
)
