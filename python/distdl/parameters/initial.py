"""The initial values of parameters in blocks, equal to the whole parameter's in a single process."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from distdl.parameters.layout import Layout
from distdl.partitions.boxes import common_box, slices_within

Initializer: TypeAlias = Callable[[torch.Tensor], object]
"""Fills a whole tensor in place, as the functions of ``torch.nn.init`` do."""

# Uniform values are drawn for this many elements at a time, so that no rank holds a whole weight.
DRAWN_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Uniform:
    """U(-bound, bound), as drawn by ``Tensor.uniform_``: value after value, in row-major order."""

    bound: float

    def __call__(self, tensor: torch.Tensor) -> None:
        tensor.uniform_(-self.bound, self.bound)


@torch.no_grad()
def fill(tensor: torch.Tensor, layout: Layout, initialize: Initializer) -> None:
    """Fill this rank's part of a tensor with the values that an initializer gives the whole tensor.

    Each rank draws the whole tensor. So with the same seed on all ranks it equals the sequential layer's, and their
    generators stay in step. The draw takes the memory of the whole tensor; with :class:`Uniform`, a bounded amount.
    ``tensor`` has shape ``layout.local_shape``. Every rank of the layer has to call it.
    """
    rows, row = layout.shape[0] if layout.shape else 1, math.prod(layout.shape[1:])
    at_once = max(1, DRAWN_AT_ONCE // max(row, 1)) if isinstance(initialize, Uniform) else max(1, rows)
    intervals, device = layout.intervals, "meta" if tensor.is_meta else "cpu"
    for first in range(0, max(1, rows), at_once):  # also without rows, where torch may warn or raise
        shape = (min(at_once, rows - first), *layout.shape[1:]) if layout.shape else ()
        drawn = torch.empty(shape, dtype=tensor.dtype, device=device)
        initialize(drawn)
        box = [(0, n) if d > 0 else (first, first + n) for d, n in enumerate(shape)]
        common = None if intervals is None else common_box(intervals, box)
        if intervals is not None and common is not None:
            tensor[slices_within(common, intervals)].copy_(drawn[slices_within(common, box)])


def like_linear(shape: tuple[int, ...]) -> tuple[Uniform, Uniform]:
    """The initializers of torch.nn's Linear and Conv layers for a weight of this shape, and for the bias.

    The weight's bound is as in ``kaiming_uniform_(weight, a=sqrt(5))``: see torch.nn.Linear.
    """
    fan_in = math.prod(shape[1:])
    if fan_in == 0:
        return Uniform(0.0), Uniform(0.0)
    std = torch.nn.init.calculate_gain("leaky_relu", math.sqrt(5)) / math.sqrt(fan_in)
    return Uniform(math.sqrt(3.0) * std), Uniform(1 / math.sqrt(fan_in))
