"""Dropout over blocks: the mask belongs to the whole tensor, whatever its partition."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import torch
import torch.nn.functional as F

from distdl.collective.construction import PartitionLike
from distdl.collective.grid import Grid
from distdl.nn.families import family
from distdl.nn.layer import Layer
from distdl.nn.masks import random_choice, random_mask
from distdl.parameters.layout import Interval

__all__ = [
    "DistributedAlphaDropout",
    "DistributedDropout",
    "DistributedDropout1d",
    "DistributedDropout2d",
    "DistributedDropout3d",
    "DistributedFeatureAlphaDropout",
]


class RandomLayer(Layer):
    """The base class of layers that multiply by random numbers, of which each element of the whole input has its own.

    Of each call torch's default generator gives one number on every rank; all others follow from that of worker 0. So
    they are the same for every partition, different at each call and in each layer, and the same again where
    activation checkpointing computes a call again.
    """

    inplace: bool

    def check_options(self) -> None:
        self.check_bool("inplace")

    def check_bool(self, name: str) -> None:
        """Raise a TypeError if an option is not a bool."""
        if not isinstance(getattr(self, name), bool):
            raise TypeError(f"{type(self).__name__}: {name}={getattr(self, name)!r}; it has to be a bool")

    def check_number(self, name: str) -> None:
        """Raise a TypeError if an option is not a number."""
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{type(self).__name__}: {name}={value!r}; it has to be a number")

    def prepare(self) -> None:
        """Begin with what a rank outside of P_x knows of the input, which is nothing."""
        self.whole: list[int] = []
        self.intervals: list[Interval] = []

    def compared_each_call(self) -> str:
        """The mode."""
        return "in training" if self.training else "in evaluation"

    def accepts(self, dtype: torch.dtype) -> bool:
        """Whether the input of a call in this mode may be of a dtype."""
        return dtype.is_floating_point

    def set_up(self) -> None:
        """Find the place of this worker's block in the whole input."""
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
            self.intervals = []
            for along, place in zip(sizes, self.grid.place, strict=True):
                stops = list(itertools.accumulate(along, initial=0))
                self.intervals.append((stops[place], stops[place + 1]))

    def times(self, input: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Input times factor, in place if the option says so."""
        return input.mul_(factor) if self.inplace else input * factor


class DropoutLayer(RandomLayer):
    """The base class of all kinds of dropout."""

    p: float
    as_sequential: bool

    def __init__(
        self, P_x: PartitionLike, p: float = 0.5, inplace: bool = False, *, as_sequential: bool = False
    ) -> None:
        super().__init__(locals())

    def check_options(self) -> None:
        super().check_options()
        self.check_bool("as_sequential")
        self.check_number("p")
        if not 0 <= self.p <= 1:
            raise ValueError(f"{type(self).__name__}: p={self.p!r}; it must be between 0 and 1")

    def agreeing(self) -> list[Grid]:
        """With as_sequential=True all ranks, since all of them draw numbers for the whole input."""
        return [self.grid.constructing_ranks()] if self.as_sequential else super().agreeing()

    def drops(self) -> bool:
        """Whether the call drops some elements and keeps others."""
        return self.training and 0 < self.p < 1

    def is_random(self) -> bool:
        """In training, unless all elements are dropped or none. as_sequential=True draws in its own way."""
        return self.drops() and not self.as_sequential

    def accepts(self, dtype: torch.dtype) -> bool:
        """Any dtype where nothing is drawn, as torch does."""
        return dtype.is_floating_point or not self.drops()

    def drawn_dims(self) -> int:
        """How many dimensions, from the first on, the random numbers have; they are the same along all others."""
        return self.grid.dim

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        """Drop elements of this rank's block of the input."""
        drops = self.drops() and 0 not in self.whole
        whole_mask = self._mask_of_torch(input.device) if self.as_sequential and drops and self.grid.known else None
        if not self.grid.active:
            return self.without_part(input)
        if drops:
            mask = self._mask(input) if whole_mask is None else whole_mask[self._slices()]
            return self.applied(input, mask)
        drops_all = self.training and self.p == 1
        return self.times(input, input.new_zeros(())) if drops_all else input

    def applied(self, input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The result, with a mask that is 0 or, where elements are kept, 1/(1-p)."""
        return self.times(input, mask)

    kept: ClassVar[float | None] = None
    """What the mask is where elements are kept, if not 1/(1-p)."""

    def _shape(self) -> list[int]:
        return [n if d < self.drawn_dims() else 1 for d, n in enumerate(self.whole)]

    def _intervals(self) -> list[Interval]:
        return [one if d < self.drawn_dims() else (0, 1) for d, one in enumerate(self.intervals)]

    def _slices(self) -> tuple[slice, ...]:
        return tuple(itertools.starmap(slice, self._intervals()))

    def _mask(self, input: torch.Tensor) -> torch.Tensor:
        where, of_input = (self._shape(), self._intervals()), {"dtype": input.dtype, "device": input.device}
        if self.kept is None:
            return random_mask(self.random_key, *where, self.p, **of_input)
        return random_choice(self.random_key, *where, self.p, (0.0, self.kept), **of_input)

    def _mask_of_torch(self, device: torch.device) -> torch.Tensor:
        """The whole mask as torch.nn.functional draws it; on every rank, so that the generators stay in step."""
        shape, dtype = self._shape(), self.dtype_of_input
        if self.kept is None and shape == self.whole:  # on a GPU drawn in another way
            return F.dropout(torch.ones(shape, dtype=dtype, device=device), self.p)
        mask = torch.empty(shape, dtype=dtype, device=device).bernoulli_(1 - self.p)
        return mask.div_(1 - self.p) if self.kept is None else mask.mul_(self.kept)


class DropoutOfChannels(DropoutLayer):
    """The base class of dropout of whole channels in ``dims`` spatial dimensions."""

    dims: ClassVar[int]

    def check_options(self) -> None:
        super().check_options()
        takes = [self.dims + 1, self.dims + 2]
        if self.grid.known and self.grid.dim not in takes:
            raise ValueError(
                f"{type(self).__name__}: P_x has {self.grid.dim} dimensions; it must have {takes[0]} or {takes[1]}"
            )

    def drawn_dims(self) -> int:
        """1 without a batch; torch.nn.Dropout2d takes an input of 3 dimensions for one with a batch."""
        return 1 if self.grid.dim == self.dims + 1 and self.dims != 2 else 2


class DropoutToMean(DropoutLayer):
    """The base class of alpha dropout."""

    kept = 1.0

    def applied(self, input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The formula of torch.nn.functional.alpha_dropout."""
        alpha = 1.7580993408473766
        scale = 1 / math.sqrt((alpha * alpha * self.p + 1) * (1 - self.p))
        shift = mask.add(-1).mul_(alpha * scale).add_(alpha * scale * self.p)
        result = self.times(input, mask.mul_(scale))
        return result.add_(shift) if self.inplace else result + shift


_DOCUMENTATION = """{what}: ``torch.nn.{name}``, block by block.

    Args:
        P_x: the partition of the input, with {dimensions}; any dimension may be split.
        p, inplace: as in ``torch.nn.{name}``.
        as_sequential: draw what ``torch.nn.{name}`` draws in one process with the same seed. Every rank draws the
            numbers of the whole input, for which it takes the time and the memory. The mask is that of a contiguous
            input; torch fills that of a transposed or channels-last one in the order of its memory.

    What is dropped is a function of the seed, the call and the index in the whole input: the same for every partition
    and number of ranks, different at each call and in each layer, and the same again where activation checkpointing
    computes a call again. Each call in training takes one number from torch's default generator, on every rank; that of
    worker 0 decides. With ``as_sequential=True`` the generators of all ranks have to be in step.

    Shape:
        {shape}, in blocks of any sizes over P_x; the result in the same blocks.

    Raises:
        TypeError, ValueError: on all ranks, if an option is not what torch.nn takes, P_x has other dimensions, or the
            input is not in blocks over P_x of one dtype, of floating point where elements are dropped.
        ValueError: on all ranks, if p, the other options or the mode are not the same on all of them.

    Constructing is collective over the communicator that P_x comes from, calling over P_x; with ``as_sequential=True``
    both are collective over the communicator. No data is sent.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.{name}.html; J. K. Salmon, M. A. Moraes, R. O. Dror,
    D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """


def _documentation(name: str, what: str, shape: str, dimensions: str = "as many dimensions as it") -> str:
    return _DOCUMENTATION.format(name=name, what=what, shape=shape, dimensions=dimensions)


class DistributedDropout(DropoutLayer):
    __doc__ = _documentation("Dropout", "Drops elements", "Any shape")


class DistributedAlphaDropout(DropoutToMean):
    __doc__ = _documentation("AlphaDropout", "Drops elements, and keeps mean and variance", "Any shape")


class DistributedFeatureAlphaDropout(DropoutToMean):
    __doc__ = _documentation(
        "FeatureAlphaDropout", "Drops channels, and keeps mean and variance", "``(N, C, *)``", "at least 2 dimensions"
    )

    def check_options(self) -> None:
        super().check_options()
        if self.grid.known and self.grid.dim < 2:
            raise ValueError(
                f"DistributedFeatureAlphaDropout: P_x has {self.grid.dim} dimensions; it must have at least 2"
            )

    def drawn_dims(self) -> int:
        """A batch and channels."""
        return 2


DistributedDropout1d, DistributedDropout2d, DistributedDropout3d = family(
    "DistributedDropout{dims}d",
    _documentation(
        "Dropout{dims}d", "Drops channels", "A batch, channels and {dims} spatial dimensions, or as torch.nn takes it"
    ),
    DropoutOfChannels,
)
