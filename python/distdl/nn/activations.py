"""Activations that own parameters, draw random numbers, or look across a dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from distdl.collective.construction import PartitionLike
from distdl.nn.dropout import RandomLayer
from distdl.nn.masks import random_uniform

__all__ = ["DistributedRReLU"]


class DistributedRReLU(RandomLayer):
    """Multiplies what is not positive by random slopes: ``torch.nn.RReLU``, block by block.

    Args:
        P_x: the partition of the input, with as many dimensions; any of them may be split.
        lower, upper, inplace: as in ``torch.nn.RReLU``.

    In training each element of the whole input has a slope of its own, uniform between ``lower`` and ``upper``, which
    is a function of the seed, the call and its index: see :class:`distdl.nn.DistributedDropout`. The slopes are not
    those that torch.nn draws in one process, which depend on the signs of all elements. In evaluation the slope is
    (lower + upper) / 2.

    Shape:
        Any shape, in blocks of any sizes over P_x; the result in the same blocks.

    Raises:
        TypeError, ValueError: on all ranks, if an option is not what torch.nn takes, or the input is not in blocks over
            P_x of one floating point dtype.

    Constructing is collective over the communicator that P_x comes from, calling over P_x. No data is sent.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.RReLU.html.
    """

    lower: float
    upper: float

    def __init__(
        self, P_x: PartitionLike, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__(locals())

    def check_options(self) -> None:
        super().check_options()
        for name in ("lower", "upper"):
            self.check_number(name)
        if not self.lower <= self.upper:
            raise ValueError(f"DistributedRReLU: lower={self.lower!r} must not exceed upper={self.upper!r}")

    def is_random(self) -> bool:
        """In training."""
        return self.training

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the activation to this rank's block."""
        if not self.grid.active:
            return self.without_part(input)
        if not self.training:
            return F.rrelu(input, self.lower, self.upper, False, self.inplace)
        slopes = random_uniform(
            self.random_key,
            self.whole,
            self.intervals,
            self.lower,
            self.upper,
            dtype=input.dtype,
            device=input.device,
        )
        return self.times(input, torch.where(input.detach() <= 0, slopes, 1.0))
