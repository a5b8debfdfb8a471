"""Power-average pooling over blocks."""

from __future__ import annotations

import math
from typing import Annotated, SupportsFloat

import torch
import torch.nn.functional as F

from distdl.nn.base.by_dimensions import family
from distdl.nn.base.option_types import Flag, PositiveSizes, PositiveSizesOrNone, named, option, with_options
from distdl.nn.pooling.sliding import AveragingPool, lowest_of

__all__ = ["DistributedLPPool1d", "DistributedLPPool2d", "DistributedLPPool3d"]


def _norm_type(layer: str, value: SupportsFloat, name: str) -> float:
    try:
        norm_type = float(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{layer}: {name}={value!r} is not a number") from error
    try:
        F.lp_pool1d(torch.ones(1, 1, 1, device="cpu"), norm_type, 1)
    except (ValueError, ZeroDivisionError) as error:  # for 0; the type depends on the version of torch
        raise type(error)(f"{layer}: {name} must not be zero") from error
    return norm_type


@with_options
class _DistributedLPPool(AveragingPool):
    norm_type: Annotated[float, named(_norm_type)]
    kernel_size: PositiveSizes
    stride: PositiveSizesOrNone = option(default=None)
    ceil_mode: Flag = False
    _max_pools = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}

    def pool(self, x: torch.Tensor) -> torch.Tensor:
        """The steps of torch.nn.functional.lp_pool, from powers or magnitudes of the elements inside of the tensor."""
        inside = F.pad(x, self._beyond(-1))
        if math.isinf(self.norm_type):
            sign = math.copysign(1, self.norm_type)
            magnitudes = F.pad(inside.abs() * sign, self._beyond(1), value=lowest_of(x.dtype))
            return self._max_pools[self.dims](magnitudes, self.kernel_size, self.stride) * sign
        averages = super().pool(F.pad(inside.pow(self.norm_type), self._beyond(1)))
        sums = (torch.sign(averages) * F.relu(torch.abs(averages))).mul(math.prod(self.kernel_size))
        return sums.pow(1.0 / self.norm_type)

    def _beyond(self, sign: int) -> list[int]:
        """The widths of windows beyond the end of the tensor, in the order of ``F.pad``, times the sign."""
        widths = []
        for along in reversed(self.axes):
            start, stop = along.reads
            widths += [0, sign * max(0, min(stop - along.n, stop - start))]
        return widths


_LP_POOL_DOC = """Applies {dims}-d power-average pooling to a partitioned tensor: ``torch.nn.LPPool{dims}d``.

    Args:
        P_x: the partition of input and output, ``[channels, *space]`` or ``[batch, channels, *space]``.
        norm_type, kernel_size, stride, ceil_mode: as in ``torch.nn.LPPool{dims}d``.
        output_blocks: 'balanced' in space, or 'aligned': cut where the input is cut, as far as the stride allows.

    Shape:
        ``(N, C, *space)`` or ``(C, *space)``, as P_x, in any blocks. The result of torch.nn is in the same blocks of
        batch and channels, and in balanced or aligned blocks of space.

    Raises:
        ValueError: on all ranks, if the partition or output_blocks is invalid.
        ValueError, TypeError, ZeroDivisionError: on all ranks, as in torch, if norm_type is not a number, or is 0.
        RuntimeError: on all ranks, for options or an input size that torch.nn refuses.
    """

DistributedLPPool1d, DistributedLPPool2d, DistributedLPPool3d = family(
    "DistributedLPPool{dims}d", _LP_POOL_DOC, _DistributedLPPool
)
