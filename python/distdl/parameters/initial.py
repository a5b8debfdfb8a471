"""The first values of parameters in blocks: the values that the whole parameter would have in one process."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from distdl.parameters.layout import Layout

Initializer: TypeAlias = Callable[[torch.Tensor], object]
"""Fills a whole tensor in place, as the functions of ``torch.nn.init`` do."""

# Uniform values are drawn for this many elements at a time, so that no rank holds a whole weight.
DRAWN_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Uniform:
    """U(-bound, bound), drawn as ``Tensor.uniform_`` draws it: value after value, in row-major order."""

    bound: float

    def __call__(self, tensor: torch.Tensor) -> None:
        """Fill a tensor."""
        tensor.uniform_(-self.bound, self.bound)


@torch.no_grad()
def fill(tensor: torch.Tensor, layout: Layout, initialize: Initializer) -> None:
    """Fill this rank's part of a tensor with the values that an initializer gives the whole tensor.

    Each rank draws all of the tensor. With the same seed on all ranks the whole tensor is therefore the same for every
    partition, equal to the sequential layer's, and the ranks' generators stay in step. The draw takes the memory of the
    whole tensor for a moment; with :class:`Uniform` it takes a bounded amount.

    Args:
        tensor: the part that lives on this rank, of the shape ``layout.local_shape``.
        layout: the layout of the whole tensor.
        initialize: fills a tensor in place.

    Every rank of the layer has to call it.
    """
    rows, row = layout.shape[0] if layout.shape else 1, math.prod(layout.shape[1:])
    at_once = max(1, DRAWN_AT_ONCE // max(row, 1)) if isinstance(initialize, Uniform) else max(1, rows)
    intervals, device = layout.intervals, "meta" if tensor.is_meta else "cpu"
    for first in range(0, max(1, rows), at_once):  # also of no rows, where torch may have something to say
        shape = (min(at_once, rows - first), *layout.shape[1:]) if layout.shape else ()
        drawn = torch.empty(shape, dtype=tensor.dtype, device=device)
        initialize(drawn)
        if intervals is None:
            continue
        if not intervals:
            tensor.copy_(drawn)
            continue
        start, stop = intervals[0]
        low, high = max(start, first), min(stop, first + drawn.shape[0])
        if low < high:
            mine = drawn[(slice(low - first, high - first), *(slice(*interval) for interval in intervals[1:]))]
            tensor[low - start : high - start].copy_(mine)


def like_linear(shape: tuple[int, ...]) -> tuple[Uniform, Uniform]:
    """The initializers that torch.nn's Linear and Conv layers use for a weight of this shape, and for their bias.

    The bound of the weight is that of ``kaiming_uniform_(weight, a=sqrt(5))``: see torch.nn.Linear.
    """
    fan_in = math.prod(shape[1:])
    if fan_in == 0:
        return Uniform(0.0), Uniform(0.0)
    std = torch.nn.init.calculate_gain("leaky_relu", math.sqrt(5)) / math.sqrt(fan_in)
    return Uniform(math.sqrt(3.0) * std), Uniform(1 / math.sqrt(fan_in))
