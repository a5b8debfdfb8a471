"""Regions of an array, cut out and reversed, and the blocks of a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Self
from distdl.operators.constructors import HaloPair

Bounds: TypeAlias = slice | tuple[int | None, int | None] | None
RegionLike: TypeAlias = Sequence[Bounds]
"""For each dimension a slice, a pair (start, stop), or None for the whole dimension; further dimensions are whole."""


@dataclass(frozen=True)
class Region:
    """A box of an array, of which some dimensions are reversed.

    Attributes:
        array_shape: the shape of the array.
        starts, shape: the first element and the extent of the box for each dimension.
        reversed_dims: the dimensions that are reversed.
    """

    array_shape: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    reversed_dims: tuple[int, ...]

    @classmethod
    def of(
        cls, operation: str, shape: Sequence[int], region: RegionLike | None, flip: int | Sequence[int] = ()
    ) -> Self:
        """The region that a user asks for. Raises ValueError or TypeError if it does not fit the shape of the array."""
        bounds: Sequence[Bounds] = () if region is None else region
        if len(bounds) > len(shape):
            raise ValueError(
                f"{operation}: region has {len(bounds)} dimensions; the array of shape {list(shape)} has {len(shape)}"
            )
        whole = (*bounds, *[None] * (len(shape) - len(bounds)))
        ranges = [_range(operation, d, n) for d, n in zip(whole, shape, strict=True)]
        return cls(
            tuple(shape),
            tuple(r.start for r in ranges),
            tuple(len(r) for r in ranges),
            dims_of(operation, "flip", flip, len(shape)),
        )

    def slices(self, block: Sequence[slice]) -> tuple[slice, ...]:
        """The slices of the array that hold a block of the region."""
        return tuple(self.slice(d, part) for d, part in enumerate(block))

    def slice(self, dim: int, part: slice) -> slice:
        """The slice of the array that holds a part of one dimension of the region."""
        start, n = self.starts[dim], self.shape[dim]
        low, high = (n - part.stop, n - part.start) if dim in self.reversed_dims else (part.start, part.stop)
        return slice(start + low, start + high)


def _range(operation: str, bounds: Bounds, n: int) -> range:
    if bounds is None:
        return range(n)
    if not isinstance(bounds, slice):
        if not isinstance(bounds, Sequence) or len(bounds) != 2:
            raise TypeError(f"{operation}: region holds {bounds!r}; it has to hold slices, pairs (start, stop) or None")
        bounds = slice(*bounds)
    start, stop, step = bounds.indices(n)
    if step != 1:
        raise ValueError(f"{operation}: region holds {bounds}; a region has no steps (flip reverses a dimension)")
    return range(start, max(start, stop))


def dims_of(operation: str, name: str, dims: int | Sequence[int], dim: int) -> tuple[int, ...]:
    """Dimensions from 0 on. Raises ValueError if one of them is not there, or there twice."""
    numbers = [index(d) for d in (dims if isinstance(dims, Sequence) else (dims,))]
    positive = tuple(d % dim if -dim <= d < dim else -1 for d in numbers)
    if -1 in positive or len(set(positive)) < len(positive):
        raise ValueError(
            f"{operation}: {name}={dims}; it has to be distinct dimensions of an array of {dim} dimensions"
        )
    return positive


def with_halo(block: slice, n: int, width: HaloPair) -> slice:
    """A slice with its halo within n elements; empty slices do not change."""
    left, right = width
    return slice(max(0, block.start - left), min(n, block.stop + right)) if block.stop > block.start else block
