"""Blocks of which all elements are equal, as torch has them of the whole tensor."""

import dataclasses

import pytest

from support.blocks import grid
from support.families import EXAMPLES, splits
from support.ranks import job
from support.sequential import assert_equals_sequential, slices_of

REDUCTIONS = ("Cosine", "Pairwise", "Triplet", "Softm", "LogSoftmax", "CrossEntropy", "LPPool", "Norm")


def with_equal_block(x, P, cut, rank, value):
    """A tensor with one value in place of all elements of the block of a rank; the same on all ranks."""
    place = job.bcast(slices_of(P, x.shape, cut) if job.rank == rank else None, root=rank)
    changed = x.clone()
    changed[place] = value
    return changed


@pytest.mark.ranks(2)
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("name", [name for name in EXAMPLES if any(one in name for one in REDUCTIONS)])
def test_second_derivatives_of_equal_parts(P_world, name, value):
    """A norm of a part that is zero has no second derivative, though the norm of the whole vector has."""
    example = EXAMPLES[name]
    P = grid(P_world, splits(example)[-1])
    wholes = example.inputs()
    for i, x in enumerate(wholes):
        if x.is_floating_point():
            changed = with_equal_block(x, P, example.cuts[i], P.size - 1, value)
            inputs = (*wholes[:i], changed, *wholes[i + 1 :])
            changed = dataclasses.replace(example, inputs=lambda inputs=inputs: tuple(one.clone() for one in inputs))
            assert_equals_sequential(changed, P)
