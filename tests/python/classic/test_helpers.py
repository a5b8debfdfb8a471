"""The blocks of workers, as programs written for DistDL compute them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
from distdl.utilities.slicing import compute_intersection, compute_start_index, compute_stop_index, compute_subshape
from distdl.utilities.tensor_decomposition import (
    compute_subtensor_shapes_balanced,
    compute_subtensor_start_indices,
    compute_subtensor_stop_indices,
)
from support.blocks import balanced
from support.ranks import on_all_ranks

grids = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=3)


@given(grids)
@on_all_ranks
def test_blocks(pairs):
    """Of every worker at once, and of one of them."""
    workers, extents = zip(*pairs, strict=True)
    shapes = compute_subtensor_shapes_balanced(distdl.TensorStructure(torch.empty(extents)), np.array(workers))
    starts, stops = compute_subtensor_start_indices(shapes), compute_subtensor_stop_indices(shapes)
    assert shapes.shape == (*workers, len(workers))
    for index in np.ndindex(*workers):
        expected = [balanced(n, p, i) for n, p, i in zip(extents, workers, index, strict=True)]
        assert [tuple(pair) for pair in zip(starts[index].tolist(), stops[index].tolist(), strict=True)] == expected
        assert (stops[index] - starts[index]).tolist() == shapes[index].tolist()
        for function, values in (
            (compute_subshape, shapes),
            (compute_start_index, starts),
            (compute_stop_index, stops),
        ):
            assert function(np.array(workers), np.array(index), extents).tolist() == values[index].tolist()


@pytest.mark.ranks(1)
def test_intersections():
    start, stop, shape = compute_intersection([0, 2], [4, 6], [1, 6], [3, 9])
    assert (start.tolist(), stop.tolist(), shape.tolist()) == ([1, 6], [3, 6], [2, 0])
