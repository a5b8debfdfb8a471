"""Local response normalization over blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from distdl.modules.graph import connect_to, empty_result
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Float, Positive, with_options
from distdl.nn.base.precision import wide
from distdl.nn.windows.blocks import naming_layer
from distdl.nn.windows.reader import BoxReader
from distdl.partitions.boxes import block_intervals

__all__ = ["DistributedLocalResponseNorm"]


@with_options
class DistributedLocalResponseNorm(Layer):
    """Normalizes each element by the neighboring channels: ``torch.nn.LocalResponseNorm`` over blocks.

    Args:
        P_x: the partition of input and output, ``[batch, channels, *space]``; any dimension may be split.
        size, alpha, beta, k: as in ``torch.nn.LocalResponseNorm``.

    Shape:
        ``(N, C, *space)`` in any blocks. The result is in the same blocks.

    Raises:
        ValueError: on all ranks, if P_x has fewer than three dimensions, or the input is not in blocks of P_x.
        RuntimeError, NotImplementedError: on all ranks, for a size or dtype that torch.nn refuses.

    Collective: constructing over P_x's parent communicator, calling over P_x. If the channels are split, workers
    exchange the channels in their windows.

    Source: A. Krizhevsky, I. Sutskever, G. E. Hinton, "ImageNet Classification with Deep Convolutional Neural Networks"
    (2012); options as in https://docs.pytorch.org/docs/stable/generated/torch.nn.LocalResponseNorm.html.
    """

    size: Positive
    alpha: Float = 1e-4
    beta: Float = 0.75
    k: Float = 1.0

    def check_options(self) -> None:
        self.check_shape(self.grid.dim >= 3, "it must be [batch, channels, *space]")

    def set_up(self) -> None:
        name, sizes = type(self).__name__, self.blocks(self.grid)
        with naming_layer(name):
            for _, dtype in self.structure(self.grid):  # torch has different kernels for more dimensions
                self._function(torch.zeros((1,) * self.grid.dim, dtype=dtype, device="cpu"))
        before, after = self.size // 2, (self.size - 1) // 2
        wanted = [block_intervals(along) for along in sizes]
        wanted[1] = [(a - before, b + after) if a < b else (a, b) for a, b in wanted[1]]
        split = self.grid.shape[1] > 1
        self._read = BoxReader(name, self.grid, self.grid, list(map(sum, sizes)), wanted) if split else None

    def _function(self, x: torch.Tensor) -> torch.Tensor:
        # Of more than two dimensions of space torch joins the last by a view, which fails for some memory orders.
        joins = x.dim() > 4
        return F.local_response_norm(x.contiguous() if joins else x, self.size, self.alpha, self.beta, self.k)

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return empty_result(input)
        dtype = self._function(input.detach().new_zeros((1,) * input.dim())).dtype  # differs for integers
        if self._read is None:
            return self._function(input) if input.numel() else empty_result(input).to(dtype)
        read = self._read(input)
        if input.numel() == 0:
            return connect_to(input, read).to(dtype)
        squares = wide(read).square().flatten(2).unsqueeze(1)  # (N, 1, channels, space)
        means = F.avg_pool2d(squares, (self.size, 1), stride=1).view(input.shape)
        return (input / (self.k + self.alpha * means) ** self.beta).to(dtype)
