"""Power-average pooling over blocks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from distdl.construction import constructor
from distdl.nn.pooling import AveragingPool, lowest_of


class _DistributedLPPool(AveragingPool):
    _max_pools = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}

    @constructor
    def __init__(
        self,
        P_x: Any,
        norm_type: float,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        ceil_mode: bool = False,
        *,
        output_blocks: str = "balanced",
    ) -> None:
        super().__init__()
        self.norm_type, self.output_blocks = norm_type, output_blocks
        self._set_up(P_x, kernel_size, stride, 0, 1, ceil_mode, 0.0, {"norm_type": norm_type})

    def _check_others(self) -> None:
        norm_type = self.norm_type
        try:
            self.norm_type = float(norm_type)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{type(self).__name__}: norm_type={norm_type!r} is not a number") from error
        if self.norm_type == 0:
            raise ZeroDivisionError(f"{type(self).__name__}: norm_type must not be zero")

    def _pool(self, x: torch.Tensor) -> torch.Tensor:
        """The steps of torch.nn.functional.lp_pool, from powers or magnitudes of what is inside of the tensor."""
        inside = F.pad(x, self._beyond(-1))
        if math.isinf(self.norm_type):
            sign = math.copysign(1, self.norm_type)
            magnitudes = F.pad(inside.abs() * sign, self._beyond(1), value=lowest_of(x.dtype))
            return self._max_pools[self.dims](magnitudes, self.kernel_size, self.stride) * sign
        averages = super()._pool(F.pad(inside.pow(self.norm_type), self._beyond(1)))
        sums = (torch.sign(averages) * F.relu(torch.abs(averages))).mul(math.prod(self.kernel_size))
        return sums.pow(1.0 / self.norm_type)

    def _beyond(self, sign: int) -> list[int]:
        """How far windows hang over the end of the tensor, in the order of ``F.pad``; negative to cut that off."""
        widths = []
        for _, n, _, (start, stop) in reversed(list(self._own())):
            widths += [0, sign * max(0, min(stop - n, stop - start))]
        return widths

    def extra_repr(self) -> str:
        """Options and the partition."""
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}, output_blocks={self.output_blocks!r}, P_x={self.P_x}"
        )


_DOCUMENTATION = """Applies {dims}-d power-average pooling to a partitioned tensor: ``torch.nn.LPPool{dims}d``.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``.
        norm_type, kernel_size, stride, ceil_mode: as in ``torch.nn.LPPool{dims}d``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input's are, as far as the stride lets it.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, as P_x has dimensions, in any blocks; out comes what
        ``torch.nn.LPPool{dims}d`` gives, in the same blocks of batch and channels and in balanced or aligned blocks of
        space. Zero volume on all other ranks.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is not as described.
        ValueError, TypeError, ZeroDivisionError: on all ranks, if norm_type is not a number, or is 0.
        RuntimeError: on all ranks, if the options or the size of the input are what torch.nn refuses.

    Constructing is collective over the communicator that P_x comes from, calling over its workers.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.LPPool{dims}d.html.
    """


class DistributedLPPool1d(_DistributedLPPool):
    __doc__ = _DOCUMENTATION.format(dims=1)
    dims = 1


class DistributedLPPool2d(_DistributedLPPool):
    __doc__ = _DOCUMENTATION.format(dims=2)
    dims = 2


class DistributedLPPool3d(_DistributedLPPool):
    __doc__ = _DOCUMENTATION.format(dims=3)
    dims = 3
