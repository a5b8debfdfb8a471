"""Boxes of indices, beside what torch selects."""

import itertools

import pytest
import torch

from distdl import _core
from distdl.partitions import boxes

pytestmark = pytest.mark.ranks(1)

INTERVALS = [(start, stop) for start in range(4) for stop in range(start, 5)]
BOXES = [*itertools.product(INTERVALS[::2], INTERVALS[1::3])]


def numbers():
    return torch.arange(16).reshape(4, 4)


def test_pieces_of_balanced_blocks():
    assert _core.pieces(5, 2, (1, 4)) == [(0, 1, 3), (1, 3, 4)]


def test_common_elements():
    for a, b in itertools.product(BOXES, repeat=2):
        common = boxes.common_box(a, b)
        both = set(numbers()[boxes.as_slices(a)].flatten().tolist())
        both &= set(numbers()[boxes.as_slices(b)].flatten().tolist())
        if common is None:
            assert not both
        else:
            assert set(numbers()[boxes.as_slices(common)].flatten().tolist()) == both
            within = numbers()[boxes.as_slices(a)][boxes.slices_within(common, a)]
            assert set(within.flatten().tolist()) == both


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 3, 4), (3, 1, 2), (1, 1)])
def test_boxes_of_an_interval(shape):
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for start in range(whole.numel() + 1):
        for stop in range(start, whole.numel() + 1):
            parts = [*boxes.boxes_between(shape, start, stop)]
            selected = [whole[boxes.as_slices(box)] for box in parts]
            assert [n for x in selected for n in x.flatten().tolist()] == [*range(start, stop)]
            assert [tuple(x.shape) for x in selected] == [boxes.box_shape(box) for box in parts]
            assert sum(map(boxes.box_size, parts)) == stop - start


def test_blocks():
    assert boxes.block_intervals([2, 0, 3]) == [(0, 2), (2, 2), (2, 5)]
    assert boxes.block_at([[2, 0, 3], [4]], [2, 0, 7]) == [(2, 5), (0, 4)]
    assert boxes.cut(5, 3) == [(0, 2), (2, 4), (4, 5)]
    assert boxes.balanced_box([5, 4], [3, 1], [1, 0]) == [(2, 4), (0, 4)]


@pytest.mark.parametrize(("workers", "extent", "sizes"), [(3, None, (1, 3, 1)), (2, None, (3, 2)), (3, 7, (3, 2, 2))])
def test_blocks_that_stay_or_are_balanced(workers, extent, sizes):
    assert boxes.box_shape(boxes.same_blocks([1, 3, 1], workers, extent)) == sizes
