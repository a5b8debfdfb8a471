"""Where the elements of a parameter live, and how they get their first values."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from distdl import primitives
from distdl._load import _core

if TYPE_CHECKING:
    from distdl.partition import Partition

# Initial values are drawn for this many elements at a time: no rank ever holds a whole weight.
_DRAWN_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Layout:
    """A parameter of a global shape in balanced blocks over a partition: every element has exactly one owner."""

    partition: Partition
    shape: tuple[int, ...]

    def block(self, index: Iterable[int]) -> list[tuple[int, int]]:
        """(start, stop) along each dimension of the block that the worker at this place owns."""
        workers = self.partition._shape
        return [_core.balanced_block(n, p, int(i)) for n, p, i in zip(self.shape, workers, index, strict=True)]

    def intervals(self) -> list[tuple[int, int]] | None:
        """(start, stop) of this rank's block along each dimension; None on ranks that have none."""
        if not self.partition.active:
            return None
        return self.block(self.partition.cartesian_index(self.partition.rank))

    @functools.cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's part of the parameter.

        Where there is none, it has no rows: as many dimensions as elsewhere, so that torch.nn.init takes it.
        """
        intervals = self.intervals()
        return (0, *self.shape[1:]) if intervals is None else tuple(stop - start for start, stop in intervals)


def kind_of(device: torch.device | str | None) -> str | None:
    """What ranks have in common, of which each has a device of its own."""
    return None if device is None else str(device).split(":")[0]


@torch.no_grad()
def uniform_(parameter: torch.Tensor, layout: Layout, bound: float) -> None:
    """Fill a parameter with U(-bound, bound), drawn as ``Tensor.uniform_`` draws the whole parameter in one process.

    With the same seed on all ranks the global parameter is therefore the same for every partition, equal to the
    sequential layer's, and the ranks' generators stay in step. Takes the time of the sequential layer on each rank, and
    a bounded amount of memory. Every rank of the layer has to call it.
    """
    rows, row = layout.shape[0], math.prod(layout.shape[1:])
    at_once = max(1, _DRAWN_AT_ONCE // max(row, 1))
    intervals = layout.intervals()
    for first in range(0, rows, at_once):
        drawn = torch.empty((min(at_once, rows - first), *layout.shape[1:]), dtype=parameter.dtype)
        drawn.uniform_(-bound, bound)
        if intervals is None:
            continue
        start, stop = intervals[0]
        low, high = max(start, first), min(stop, first + drawn.shape[0])
        if low < high:
            mine = drawn[(slice(low - first, high - first), *(slice(*interval) for interval in intervals[1:]))]
            parameter[low - start : high - start].copy_(mine)


def reset_like_linear(weight: torch.Tensor, layout: Layout) -> float:
    """Initialise a weight as torch.nn's Linear and Conv layers do; return the bound for the bias.

    The bound is that of ``kaiming_uniform_(weight, a=sqrt(5))``: see torch.nn.Linear.
    """
    fan_in = math.prod(layout.shape[1:])
    if fan_in == 0:
        return 0.0
    std = torch.nn.init.calculate_gain("leaky_relu", math.sqrt(5)) / math.sqrt(fan_in)
    uniform_(weight, layout, math.sqrt(3.0) * std)
    return 1 / math.sqrt(fan_in)


def zero_of(tensor: torch.Tensor) -> torch.Tensor:
    """0, as the sum of none of the elements: where nothing is computed, it connects a result with a tensor.

    A derivative that does not reach a parameter or an input on one rank leaves out the communication on the way, for
    which the other ranks wait: in ``torch.autograd.grad``, and in derivatives of derivatives.
    """
    return tensor.flatten()[:0].sum()


class ParameterBroadcast:
    """Carries parameters from their owners to all workers of a partition that need them, as one message each.

    The adjoint sums the gradients back to the owners. Constructing and calling are collective over the partition.

    Args:
        layer: its name, for messages.
        partition: the workers.
        owners: those of them that own the parameters, as a partition that broadcasts to all; worker 0 by default.
    """

    def __init__(self, layer: str, partition: Partition, owners: Partition | None = None) -> None:
        self._layer, self._partition = layer, partition
        self._owner = owners or partition._line(partition._ranks[:1])
        self._broadcast = primitives.broadcast(self._owner, partition if owners else partition._line(partition._ranks))

    @property
    def owner(self) -> Partition:
        """The partition of the workers that own the parameters."""
        return self._owner

    def __call__(self, *owned: tuple[torch.Tensor, tuple[int, ...]]) -> list[torch.Tensor]:
        """This worker's parameters from (this rank's part, shape of the owner's) pairs; outside the parts as they are.

        Raises:
            RuntimeError: on all workers of an owner, if what it has is not of these shapes.
        """
        if not self._partition.active:
            return [parameter for parameter, _ in owned]
        return self._parts(self._broadcast(self._message(owned)), owned)

    def start(self, *owned: tuple[torch.Tensor, tuple[int, ...]]) -> Callable[[], list[torch.Tensor]]:
        """Let the parameters travel; what it returns waits for them, and returns and raises what a call does."""
        if not self._partition.active:
            return lambda: [parameter for parameter, _ in owned]
        started = self._broadcast.start(self._message(owned))
        return lambda: self._parts(started.wait(), owned)

    def _message(self, owned: Sequence[tuple[torch.Tensor, tuple[int, ...]]]) -> torch.Tensor:
        mine = [parameter.reshape(-1) for parameter, _ in owned]
        # torch.cat would lose what has no elements from derivatives of derivatives.
        if not self._owner.active:
            return functools.reduce(operator.add, mine)
        if any(tuple(parameter.shape) != shape for parameter, shape in owned):
            return torch.empty(0)  # tells the others
        flat = torch.cat(mine)
        for empty in (one for one in mine if one.numel() == 0):
            flat = flat + zero_of(empty)
        return flat

    def _parts(self, flat: torch.Tensor, owned: Sequence[tuple[torch.Tensor, tuple[int, ...]]]) -> list[torch.Tensor]:
        expected = [shape for _, shape in owned]
        if flat.numel() != sum(map(math.prod, expected)):
            raise RuntimeError(f"{self._layer}: the parameters of their owner do not have the shapes {expected}")
        parts = flat.split([math.prod(shape) for shape in expected])
        return [part.view(shape) for part, shape in zip(parts, expected, strict=True)]
