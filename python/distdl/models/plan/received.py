"""Counts of what ranks receive of a tensor that is redistributed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from distdl.models.operations.placement import Blocks, Placement, Replicated
from distdl.models.plan.redistribution import ReadRegions, corners
from distdl.partitions.boxes import Box, Interval, box_size, common_box


@functools.lru_cache(maxsize=1024)  # deep models repeat a few operations
def received_elements(source: Placement, regions: ReadRegions, shape: tuple[int, ...]) -> Mapping[int, int]:
    """The number of elements that each rank receives from others."""
    if isinstance(source, Replicated) or regions.are_blocks(source):
        return {}
    starts, stops = regions.boxes(shape)
    if (starts < 0).any() or (stops > np.array(shape)).any():
        return _received_periodically(source, regions, shape)
    counts = np.prod(stops - starts, axis=1)
    places = source.place_of
    own = np.array([places.get(rank, -1) for rank in regions.ranks])
    of_source = corners(source.intervals)
    shared = np.minimum(stops, of_source[1][own]) - np.maximum(starts, of_source[0][own])
    counts -= np.where(own < 0, 0, np.prod(np.maximum(shared, 0), axis=1))
    return {rank: count for rank, count in zip(regions.ranks, counts.tolist(), strict=True) if count}


def senders_to(rank: int, source: Placement, regions: ReadRegions, shape: Sequence[int]) -> int:
    """The number of other ranks that have a part of what a rank reads; twice those that have two, round the end."""
    assert isinstance(source, Blocks)
    own, count = source.block(rank), 0
    for piece, met in _pieces(rank, source, regions, shape):
        count += math.prod(map(len, met)) - (own is not None and common_box(piece, own) is not None)
    return count


def from_other_nodes(
    rank: int, source: Placement, regions: ReadRegions, shape: Sequence[int], ranks_per_node: int
) -> bool:
    """Whether a part of what a rank reads is on another node, if so many ranks that follow each other are on each."""
    assert isinstance(source, Blocks)
    for _, met in _pieces(rank, source, regions, shape):
        if all(met):  # the first and the last of them: ranks of a grid are in order
            for corner in ([along[0] for along in met], [along[-1] for along in met]):
                place = int(np.ravel_multi_index(corner, source.splits)) if met else 0
                if source.ranks[place] // ranks_per_node != rank // ranks_per_node:
                    return True
    return False


def _pieces(
    rank: int, source: Blocks, regions: ReadRegions, shape: Sequence[int]
) -> Iterator[tuple[Box, list[list[int]]]]:
    """Boxes inside of the tensor that a rank reads, and for each the places of its blocks along each dimension."""
    box = regions.box(rank, shape)
    assert box is not None
    for piece in unwrapped(box, shape):
        yield (
            piece,
            [
                [i for i, (first, last) in enumerate(along) if first < last and first < stop and start < last]
                for (start, stop), along in zip(piece, source.intervals, strict=True)
            ],
        )


def _received_periodically(source: Blocks, regions: ReadRegions, shape: Sequence[int]) -> dict[int, int]:
    """:func:`received_elements` for boxes that wrap around the end of the tensor."""
    counts = {}
    for rank in regions.ranks:
        box = regions.box(rank, shape)
        assert box is not None
        own = source.block(rank)
        pieces = unwrapped(box, shape)
        shared = [] if own is None else [common for piece in pieces if (common := common_box(piece, own)) is not None]
        counts[rank] = sum(map(box_size, pieces)) - sum(map(box_size, shared))
    return {rank: count for rank, count in counts.items() if count}


def unwrapped(box: Sequence[Interval], shape: Sequence[int]) -> list[Box]:
    """Split a box that wraps around the end of a tensor into boxes inside of the tensor."""
    along = []
    for (start, stop), n in zip(box, shape, strict=True):
        turns = range(start // n, -(-stop // n)) if start < stop else range(0)
        along.append([(max(start - turn * n, 0), min(stop - turn * n, n)) for turn in turns])
    return [*itertools.product(*along)]
