"""DistributedMaxPool and DistributedAvgPool against torch.nn's, bit for bit, in one, two and three dimensions."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import distdl.nn as dnn
from support import (
    assemble,
    assert_equals_twin,
    block_of,
    blocks_of,
    grid,
    grid_shapes,
    job,
    on_all_ranks,
    raises_everywhere,
    same_bits,
    values,
)

every_dimension = pytest.mark.parametrize("dims", [1, 2, 3])
every_kind = pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])


def pool(kind, dims):
    """The sequential and the distributed layer."""
    return getattr(torch.nn, f"{kind}{dims}d"), getattr(dnn, f"Distributed{kind}{dims}d")


def assert_like_pool(P_x, kind, dims, x, sizes=None, **options):
    """Up to the second derivatives, and in every bit. Along batch and channels the blocks stay as they are."""
    sequential, distributed = pool(kind, dims)
    y_sizes = sizes and [*sizes[:-dims], *[None] * dims]
    assert_equals_twin(
        distributed(P_x, **options), sequential(**options), x, P_x, P_x, (), sizes, y_sizes, equal=same_bits
    )


def assert_same_indices(P_x, dims, x, sizes=None, **options):
    """The values and indices of a max pooling, bit for bit; where nothing was computed, none."""
    sequential, distributed = pool("MaxPool", dims)
    expected = sequential(**options, return_indices=True)(x)
    results = distributed(P_x, **options, return_indices=True)(block_of(x, P_x, sizes))
    y_sizes = sizes and [*sizes[:-dims], *[None] * dims]
    for mine, whole in zip(results, expected, strict=True):
        assert mine.dtype == whole.dtype
        assert P_x.active or mine.numel() == 0
        assert same_bits(assemble(mine, P_x, whole.shape, y_sizes), whole)


@st.composite
def poolings(draw, kind, dims):
    """Options for the layers, the shape of the input and of its partition, and the sizes of its blocks."""

    def one_or_each(options):
        return draw(st.one_of(options, st.tuples(*[options] * dims)))

    options = {
        "kernel_size": one_or_each(st.integers(1, 5)),
        "stride": draw(st.sampled_from([None, 1])) or one_or_each(st.integers(1, 6)),
        "padding": one_or_each(st.integers(0, 2)),
        "ceil_mode": draw(st.booleans()),
    }
    if kind == "MaxPool":
        options["dilation"] = one_or_each(st.integers(1, 3))
    else:
        options["count_include_pad"] = draw(st.booleans())
        if dims > 1:
            options["divisor_override"] = draw(st.sampled_from([None, 1, 3, -2]))
    leading = draw(st.sampled_from([[1], [3], [0, 1], [1, 2], [3, 1]]))
    shape = [*leading, *draw(st.lists(st.integers(1, 9), min_size=dims, max_size=dims))]
    workers = draw(st.sampled_from(grid_shapes(len(shape), job.size)))
    ranks = draw(st.permutations(range(job.size)))[: torch.Size(workers).numel()]
    return options, shape, workers, ranks, draw(blocks_of(shape, workers))


@every_kind
@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_pool(P_world, kind, dims, data):
    """Any options on any blocks, balanced or not, of space, channels and batch: or both layers refuse them."""
    options, shape, workers, ranks, sizes = data.draw(poolings(kind, dims))
    P_x, x = grid(P_world, workers, ranks), values(shape)
    sequential, distributed = pool(kind, dims)
    try:
        y = sequential(**options)(x)
    except RuntimeError:
        if P_x.active or "P_x" in options:
            with pytest.raises(RuntimeError):
                distributed(P_x, **options)(block_of(x, P_x, sizes))
        else:
            with contextlib.suppress(RuntimeError):
                distributed(P_x, **options)
        return
    # Where a window of torch.nn's reads only padding, its backward writes outside of the gradient.
    assume(kind == "AvgPool" or not torch.isneginf(y).any())
    assert_like_pool(P_x, kind, dims, x, sizes, **options)
    if kind == "MaxPool":
        assert_same_indices(P_x, dims, x, sizes, **options)
