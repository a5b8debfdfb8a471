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


def refused_by_both(kind, P_x, dims, x, sizes, **options):
    """Whether torch.nn's layer refuses the options or the input; the distributed one has to then."""
    sequential, distributed = pool(kind, dims)
    try:
        sequential(**options)(x)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            distributed(P_x, **options)(block_of(x, P_x, sizes))
            if not P_x.active:
                raise RuntimeError("what only the call refuses is not this rank's concern") from None
        return True
    return False


def assert_like_pool(kind, P_x, dims, x, sizes, equal_derivatives, **options):
    """In every bit, and up to the second derivatives. Along batch and channels the blocks stay as they are."""
    sequential, distributed = pool(kind, dims)
    y_sizes = sizes and [*sizes[:-dims], *[None] * dims]
    assert_equals_twin(
        distributed(P_x, **options), sequential(**options), x, P_x, P_x, (), sizes, y_sizes, same_bits, equal_derivatives
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


# What the integers of the input stand for: numbers with ties, or what compares in its own ways.
CONTENTS = {
    "ties": (0, 1, 2, 3),
    "lowest": (-torch.inf, -torch.inf, -torch.inf, 1),
    "nan": (torch.nan, -torch.inf, torch.inf, 2),
}


@pytest.mark.parametrize("content", CONTENTS)
@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_max_pool(P_world, dims, content, data):
    """Any options on any blocks, balanced or not, of space, channels and batch: or both layers refuse them."""
    options, shape, workers, ranks, sizes = data.draw(poolings("MaxPool", dims))
    P_x, x = grid(P_world, workers, ranks), torch.tensor(CONTENTS[content], dtype=torch.float64)[values(shape).long()]
    # Where a window of torch.nn's reads nothing but padding, its backward pass writes anywhere.
    if refused_by_both("MaxPool", P_x, dims, x, sizes, **options):
        return
    assume(not pool("MaxPool", dims)[0](**options)(torch.zeros(shape)).isneginf().any())
    assert_like_pool("MaxPool", P_x, dims, x, sizes, same_bits, **options)
    assert_same_indices(P_x, dims, x, sizes, **options)


@every_dimension
@given(data=st.data())
@on_all_ranks
def test_equals_avg_pool(P_world, dims, data):
    options, shape, workers, ranks, sizes = data.draw(poolings("AvgPool", dims))
    P_x, x = grid(P_world, workers, ranks), torch.randn(shape, dtype=torch.float64, generator=torch.Generator())
    if refused_by_both("AvgPool", P_x, dims, x, sizes, **options):
        return

    def close(mine, whole):
        """Gradients are sums of quotients of one sign, one for each window, and added in another order."""
        windows = torch.Size(pool("AvgPool", dims)[0](**options)(x).shape[-dims:]).numel()
        return torch.allclose(mine, whole, atol=0, rtol=2 * windows * torch.finfo(x.dtype).eps)

    assert_like_pool("AvgPool", P_x, dims, x, sizes, close, **options)
