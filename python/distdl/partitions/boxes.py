"""Intervals and boxes of indices, and the blocks into which dimensions are cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from distdl import _core

Interval: TypeAlias = tuple[int, int]  # (start, stop)
Box: TypeAlias = tuple[Interval, ...]  # an interval for each dimension


def cut(n: int, p: int) -> list[Interval]:
    """(start, stop) of the balanced blocks of n elements over p workers."""
    return [_core.balanced_block(n, p, i) for i in range(p)]


def balanced_box(shape: Sequence[int], workers: Sequence[int], place: Sequence[int]) -> list[Interval]:
    """The block of the worker at a place, if a tensor is cut into balanced blocks over so many workers by dimension."""
    return [_core.balanced_block(n, p, i) for n, p, i in zip(shape, workers, place, strict=True)]


def block_intervals(sizes: Sequence[int]) -> list[Interval]:
    """(start, stop) of consecutive blocks of these sizes."""
    stops = itertools.accumulate(sizes)
    return [(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


def block_at(sizes: Sequence[Sequence[int]], place: Sequence[int]) -> list[Interval]:
    """The block at a place, if blocks have these sizes by dimension. Further dimensions of the place do not count."""
    return [block_intervals(along)[at] for along, at in zip(sizes, place, strict=False)]


def same_blocks(sizes: Sequence[int], workers: int, extent: int | None = None) -> list[Interval]:
    """Blocks of these sizes for as many workers and an unchanged extent, otherwise balanced blocks."""
    total = sum(sizes)
    extent = total if extent is None else extent
    return block_intervals(sizes) if len(sizes) == workers and total == extent else cut(extent, workers)


def box_shape(box: Sequence[Interval]) -> tuple[int, ...]:
    """The extents of a box; of consecutive blocks, their sizes."""
    return tuple(stop - start for start, stop in box)


def box_size(box: Sequence[Interval]) -> int:
    """The number of elements of a box."""
    return math.prod(box_shape(box))


def common_box(a: Sequence[Interval], b: Sequence[Interval]) -> Box | None:
    """The common elements of two boxes; None if there are none."""
    common = []
    for (start, stop), (first, last) in zip(a, b, strict=True):
        start, stop = first if first > start else start, last if last < stop else stop  # max() and min() take long
        if start >= stop:
            return None
        common.append((start, stop))
    return tuple(common)


def as_slices(box: Sequence[Interval]) -> tuple[slice, ...]:
    """The slices of a tensor that select a box."""
    return tuple(itertools.starmap(slice, box))


def slices_within(box: Sequence[Interval], outer: Sequence[Interval]) -> tuple[slice, ...]:
    """The slices that select a box in the part of a tensor that is itself a box."""
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, outer, strict=True))


def boxes_of(size: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The extents of all boxes of so many elements, with at most so many along each dimension."""
    if not most:
        if size == 1:
            yield ()
        return
    for first in range(1, min(size, most[0]) + 1):
        if size % first == 0:
            yield from ((first, *rest) for rest in boxes_of(size // first, most[1:]))


def boxes_between(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The elements from start to stop in row-major order, as boxes in the same order."""
    if start >= stop:
        return
    if len(shape) <= 1:
        yield ((start, stop),) if shape else ()
        return
    row = math.prod(shape[1:])
    (first, before), (last, after) = divmod(start, row), divmod(stop, row)
    if before:
        end = after if first == last else row
        yield from (((first, first + 1), *box) for box in boxes_between(shape[1:], before, end))
        if first == last:
            return
        first += 1
    if first < last:
        yield ((first, last), *((0, n) for n in shape[1:]))
    yield from (((last, last + 1), *box) for box in boxes_between(shape[1:], 0, after))
