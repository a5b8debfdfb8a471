"""Dropout over blocks: the mask belongs to the whole tensor, for every partition."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import ClassVar

import torch
import torch.nn.functional as F

from distdl.nn.base.by_dimensions import family
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Flag, Probability, with_options
from distdl.nn.base.random_numbers import random_choice, random_mask
from distdl.partitions.boxes import Interval, as_slices, block_at
from distdl.partitions.grid import Grid

__all__ = [
    "DistributedAlphaDropout",
    "DistributedDropout",
    "DistributedDropout1d",
    "DistributedDropout2d",
    "DistributedDropout3d",
    "DistributedFeatureAlphaDropout",
]


class RandomLayer(Layer):
    """The base class of layers that multiply each element of the whole input by its own random number.

    Each call takes one number from torch's default generator on every rank; the number of worker 0 decides. So results
    are equal for every partition, differ between calls and layers, and repeat when activation checkpointing recomputes
    a call.
    """

    inplace: Flag

    def prepare(self) -> None:
        """Ranks outside P_x know no shape yet."""
        self.whole: list[int] = []
        self.intervals: list[Interval] = []

    def compared_each_call(self) -> str:
        return "in training" if self.training else "in evaluation"

    def accepts(self, dtype: torch.dtype) -> bool:
        return dtype.is_floating_point

    def set_up(self) -> None:
        dtypes = list(dict.fromkeys(dtype for _, dtype in self.structure(self.grid)))
        if len(dtypes) != 1 or not self.accepts(dtypes[0]):
            raise ValueError(
                f"{type(self).__name__}: the blocks of the input are of {dtypes}; all must be of the same floating "
                "point dtype"
            )
        sizes = self.blocks(self.grid)
        self.dtype_of_input = dtypes[0]
        self.whole = [sum(along) for along in sizes]
        if self.grid.active:
            self.intervals = block_at(sizes, self.grid.place)

    def times(self, input: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return input.mul_(factor) if self.inplace else input * factor


@with_options
class DropoutLayer(RandomLayer):
    """The base class of all kinds of dropout."""

    p: Probability = 0.5
    inplace: Flag = False
    _: KW_ONLY
    as_sequential: Flag = False

    def calling_grids(self) -> list[Grid]:
        """All ranks with as_sequential=True, since all of them draw numbers for the whole input."""
        return [self.grid.constructing_ranks()] if self.as_sequential else super().calling_grids()

    def drops(self) -> bool:
        return self.training and 0 < self.p < 1

    def is_random(self) -> bool:
        """Whether the call takes a key; as_sequential=True draws as torch.nn does."""
        return self.drops() and not self.as_sequential

    def accepts(self, dtype: torch.dtype) -> bool:
        """Any dtype if nothing is dropped, as in torch."""
        return dtype.is_floating_point or not self.drops()

    def drawn_dims(self) -> int:
        """The number of leading dimensions of the random numbers, which are equal along all others."""
        return self.grid.dim

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        drops = self.drops() and 0 not in self.whole
        whole_mask = self._mask_of_torch(input.device) if self.as_sequential and drops and self.grid.known else None
        if not self.grid.active:
            return self.without_part(input)
        if drops:
            mask = self._mask(input) if whole_mask is None else whole_mask[as_slices(self._intervals())]
            return self.applied(input, mask)
        drops_all = self.training and self.p == 1
        return self.times(input, input.new_zeros(())) if drops_all else input

    def applied(self, input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The result, with a mask of 0 and, for kept elements, 1/(1-p)."""
        return self.times(input, mask)

    kept_value: ClassVar[float | None] = None
    """Value of kept_value elements in the mask; None for 1/(1-p)."""

    def _shape(self) -> list[int]:
        return [n if d < self.drawn_dims() else 1 for d, n in enumerate(self.whole)]

    def _intervals(self) -> list[Interval]:
        return [interval if d < self.drawn_dims() else (0, 1) for d, interval in enumerate(self.intervals)]

    def _mask(self, input: torch.Tensor) -> torch.Tensor:
        where, of_input = (self._shape(), self._intervals()), {"dtype": input.dtype, "device": input.device}
        if self.kept_value is None:
            return random_mask(self.random_key, *where, self.p, **of_input)
        return random_choice(self.random_key, *where, self.p, (0.0, self.kept_value), **of_input)

    def _mask_of_torch(self, device: torch.device) -> torch.Tensor:
        """The whole mask as torch.nn.functional draws it; on every rank, to keep the generators equal."""
        shape, dtype = self._shape(), self.dtype_of_input
        if self.kept_value is None and shape == self.whole:  # GPUs draw it differently
            return F.dropout(torch.ones(shape, dtype=dtype, device=device), self.p)
        mask = torch.empty(shape, dtype=dtype, device=device).bernoulli_(1 - self.p)
        return mask.div_(1 - self.p) if self.kept_value is None else mask.mul_(self.kept_value)


class ChannelDropout(DropoutLayer):
    """The base class of dropout of whole channels in ``dims`` spatial dimensions."""

    dims: ClassVar[int]

    def check_options(self) -> None:
        super().check_options()
        rule = f"it must have {self.dims + 1} or {self.dims + 2} dimensions"
        self.check_shape(self.grid.dim - self.dims in (1, 2), rule)

    def drawn_dims(self) -> int:
        """1 without a batch; torch.nn.Dropout2d takes an input of 3 dimensions as a batch."""
        return 1 if self.grid.dim == self.dims + 1 and self.dims != 2 else 2


class AlphaDropoutLayer(DropoutLayer):
    """The base class of alpha dropout."""

    kept_value = 1.0

    def applied(self, input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        alpha = 1.7580993408473766
        scale = 1 / math.sqrt((alpha * alpha * self.p + 1) * (1 - self.p))
        shift = mask.add(-1).mul_(alpha * scale).add_(alpha * scale * self.p)
        result = self.times(input, mask.mul_(scale))
        return result.add_(shift) if self.inplace else result + shift


_DROPOUT_DOC = """{title}: ``torch.nn.{name}``, block by block.

    Args:
        P_x: the partition of the input, with {dimensions}; any dimension may be split.
        p, inplace: as in ``torch.nn.{name}``.
        as_sequential: draw the same mask as ``torch.nn.{name}`` in one process with the same seed. Every rank draws the
            whole mask, with its time and memory. The mask is right for contiguous inputs; torch fills masks of
            transposed or channels-last inputs in the order of memory.

    The mask is a function of the seed, the call and the index in the whole input: equal for every partition and number
    of ranks, different at each call and in each layer, and equal again when activation checkpointing recomputes a call.
    Each call in training takes one number from torch's default generator, on every rank; the number of worker 0
    decides. With ``as_sequential=True`` the generators of all ranks must be in the same state.

    Shape:
        {shape}, in blocks of any sizes over P_x; the result in the same blocks.

    Raises:
        TypeError, ValueError: on all ranks, if torch.nn refuses an option, P_x has other dimensions, or the input is
            not in blocks over P_x of one dtype, of floating point if elements are dropped.
        ValueError: on all ranks, if options or the mode differ between ranks.

    Collective: constructing over P_x's parent communicator, calling over P_x; with ``as_sequential=True`` calling over
    the parent communicator, too. No data is sent.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.{name}.html; J. K. Salmon, M. A. Moraes, R. O. Dror,
    D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """


def _documentation(name: str, title: str, shape: str, dimensions: str = "as many dimensions as it") -> str:
    return _DROPOUT_DOC.format(name=name, title=title, shape=shape, dimensions=dimensions)


class DistributedDropout(DropoutLayer):
    __doc__ = _documentation("Dropout", "Drops elements", "Any shape")


class DistributedAlphaDropout(AlphaDropoutLayer):
    __doc__ = _documentation("AlphaDropout", "Drops elements, and keeps mean and variance", "Any shape")


class DistributedFeatureAlphaDropout(AlphaDropoutLayer):
    __doc__ = _documentation(
        "FeatureAlphaDropout", "Drops channels, and keeps mean and variance", "``(N, C, *)``", "at least 2 dimensions"
    )

    def check_options(self) -> None:
        super().check_options()
        self.check_shape(self.grid.dim >= 2, "it must have at least 2 dimensions")

    def drawn_dims(self) -> int:
        return 2


DistributedDropout1d, DistributedDropout2d, DistributedDropout3d = family(
    "DistributedDropout{dims}d",
    _documentation(
        "Dropout{dims}d", "Drops channels", "A batch, channels and {dims} spatial dimensions, or as torch.nn takes it"
    ),
    ChannelDropout,
)
