"""Which dimensions a transform has in which grid."""

import pytest

from distdl.nn.fourier.pencils import Task, plan

pytestmark = pytest.mark.ranks(1)
SHAPE = (64, 64, 64)


def dims_of(stages):
    return [stage.dims for stage in stages]


def test_neighbors_are_transformed_together():
    """There, the last two dimensions at once; and so on the way back, on which the last one could come first."""
    assert dims_of(plan(Task((0, 1, 2), None, None, SHAPE, SHAPE), (2, 1, 1), None)) == [(1, 2), (0,)]
    assert dims_of(plan(Task((0, 1, 2), None, None, SHAPE, SHAPE), (1, 2, 1), (2, 1, 1))) == [(0,), (1, 2)]


def test_the_half_spectrum_keeps_its_place():
    """It is made before everything else, and read after it."""
    half = (64, 64, 33)
    assert dims_of(plan(Task((0, 1, 2), 2, None, SHAPE, half), (1, 2, 1), (2, 1, 1))) == [(0, 2), (1,)]
    assert dims_of(plan(Task((0, 1, 2), None, 2, half, SHAPE), (1, 2, 1), (2, 1, 1))) == [(0,), (1, 2)]


def test_what_is_cropped_does_not_travel():
    """A dimension that becomes shorter is transformed as early as it can be."""
    cropped = (64, 64, 8)
    assert dims_of(plan(Task((0, 1, 2), None, None, SHAPE, cropped), (1, 2, 1), (2, 1, 1))) == [(0, 2), (1,)]
