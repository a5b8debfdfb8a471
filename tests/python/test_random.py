"""Every operator on random partitions and shapes: the adjoint identity to 1e-13, and data movement bit by bit.

Hypothesis draws the same examples on all ranks.
"""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from support import (
    assemble,
    assert_adjoint,
    balanced,
    block_of,
    block_slices,
    grid,
    job,
    on_all_ranks,
    same_bits,
)

P_world = distdl.Partition()


@st.composite
def shapes_of_workers(draw, dims, largest=job.size):
    """The shape of a grid of at most `largest` workers."""
    shape = []
    for _ in range(dims):
        shape.append(draw(st.integers(1, max(1, largest // math.prod(shape)))))
    return shape


@st.composite
def grids(draw, dims):
    """A grid of some of the ranks, in any order."""
    shape = draw(shapes_of_workers(dims))
    ranks = draw(st.permutations(range(job.size)))[: math.prod(shape)]
    return grid(P_world, shape, ranks)


@st.composite
def matching_grids(draw):
    """Two grids by the matching rules: the one, the many, and how each is read."""
    many = draw(shapes_of_workers(draw(st.integers(1, 3))))
    one = [draw(st.sampled_from([1, n])) for n in many][draw(st.integers(0, len(many) - 1)) :]
    # What the extension to the left adds are ones.
    transpose_one, transpose_many = draw(st.booleans()), draw(st.booleans())
    pair = []
    for shape, transposed in ((one, transpose_one), (many, transpose_many)):
        ranks = draw(st.permutations(range(job.size)))[: math.prod(shape)]
        pair.append(grid(P_world, shape[::-1] if transposed else shape, ranks))
    return *pair, transpose_one, transpose_many


def noise(shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(17 * job.rank + 1)
    return torch.randn(tuple(shape), dtype=dtype, generator=generator)


def input_on(P, shape):
    return noise(shape) if P.active else distdl.zero_volume_tensor(dtype=torch.float64)


def check_adjoint(layer, x):
    assert_adjoint(layer._operator, x, noise(layer(x).shape))


extents = st.integers(0, 9)


@given(matching_grids(), st.lists(extents, max_size=3))
@on_all_ranks
def test_broadcast(drawn, shape):
    P_one, P_many, transpose_one, transpose_many = drawn
    layer = dnn.Broadcast(P_one, P_many, transpose_src=transpose_one, transpose_dest=transpose_many)
    x = input_on(P_one, shape)
    check_adjoint(layer, x)
    y = layer(x)
    sources = dict(job.allgather((P_one.rank, x)))
    if P_many.active:
        assert same_bits(y, sources[one_of(P_one, P_many, transpose_one, transpose_many)])


@given(matching_grids(), st.lists(extents, max_size=3))
@on_all_ranks
def test_sum_reduce(drawn, shape):
    P_one, P_many, transpose_one, transpose_many = drawn
    layer = dnn.SumReduce(P_many, P_one, transpose_src=transpose_many, transpose_dest=transpose_one)
    x = input_on(P_many, shape)
    check_adjoint(layer, x)
    y = layer(x)
    mine = one_of(P_one, P_many, transpose_one, transpose_many) if P_many.active else None
    parts = job.allgather((mine, x))
    if P_one.active:
        exact = sum(part.double() for one, part in parts if one == P_one.rank)
        # Two orders of adding the same p numbers differ by at most p - 1 roundings of their magnitudes' sum.
        magnitude = sum(part.abs() for one, part in parts if one == P_one.rank)
        assert bool(((y - exact).abs() <= job.size * torch.finfo(torch.float64).eps * magnitude).all())


def one_of(P_one, P_many, transpose_one, transpose_many):
    """The rank in P_one that this worker of P_many belongs to, by the rules as they are written."""
    index = [int(i) for i in P_many.index][:: -1 if transpose_many else 1]
    shape = [int(n) for n in P_one.shape][:: -1 if transpose_one else 1]
    there = [i if n != 1 else 0 for i, n in zip(index[len(index) - len(shape) :], shape, strict=True)]
    rank = 0
    for i, n in zip(there[:: -1 if transpose_one else 1], P_one.shape, strict=True):
        rank = rank * int(n) + i
    return rank


@st.composite
def blocks_on_a_grid(draw, largest_dims=3):
    """A grid and the sizes of a tensor's blocks on it, balanced or not."""
    P = draw(grids(draw(st.integers(1, largest_dims))))
    if draw(st.booleans()):
        sizes = [draw(st.lists(st.integers(0, 4), min_size=int(n), max_size=int(n))) for n in P.shape]
    else:
        sizes = []
        for n in P.shape:
            extent = draw(extents)
            sizes.append([stop - start for start, stop in (balanced(extent, int(n), i) for i in range(int(n)))])
    return P, sizes


def whole_of(sizes):
    shape = [sum(along) for along in sizes]
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@given(blocks_on_a_grid(), st.data())
@on_all_ranks
def test_repartition(drawn, data):
    P_x, sizes = drawn
    P_y = data.draw(grids(P_x.dim))
    whole = whole_of(sizes)
    layer = dnn.Repartition(P_x, P_y)
    x = block_of(whole, P_x, sizes)
    y = layer(x)
    assert same_bits(assemble(y, P_y, whole.shape), whole)
    check_adjoint(layer, x)


@given(blocks_on_a_grid(), st.data())
@on_all_ranks
def test_all_gather_and_reduce_scatter(drawn, data):
    P, sizes = drawn
    axes = data.draw(st.lists(st.integers(0, P.dim - 1), unique=True))
    whole = whole_of(sizes)
    x = block_of(whole, P, sizes)
    gather = dnn.AllGather(P, axes_all_gather=axes)
    y = gather(x)
    check_adjoint(gather, x)
    if P.active:
        own = block_slices(P, whole.shape, sizes)
        seen = tuple(slice(None) if d in axes else own[d] for d in range(P.dim))
        assert same_bits(y, whole[seen])
    scatter = dnn.ReduceScatter(P, axes_reduce_scatter=axes)
    check_adjoint(scatter, y if P.active else distdl.zero_volume_tensor(dtype=torch.float64))


@given(blocks_on_a_grid(), st.data())
@on_all_ranks
def test_all_sum_reduce(drawn, data):
    P, sizes = drawn
    keep = data.draw(st.lists(st.integers(-P.dim, -1), unique=True))
    index = [int(i) for i in P.index] if P.active else None
    shape = [sizes[d][index[d]] for d in range(P.dim) if d - P.dim in keep] if P.active else ()
    layer = dnn.AllSumReduce(P, axes_keep=keep)
    x = input_on(P, shape)
    check_adjoint(layer, x)
    y = layer(x)
    parts = job.allgather((index, x))
    if P.active:
        same = [part for i, part in parts if i is not None and all(i[d] == index[d] for d in keep)]
        magnitude = sum(part.abs() for part in same)
        assert bool(((y - sum(same)).abs() <= job.size * torch.finfo(torch.float64).eps * magnitude).all())


@given(blocks_on_a_grid(), st.data())
@on_all_ranks
def test_halo_exchange(drawn, data):
    P, sizes = drawn
    widths = [tuple(data.draw(st.integers(0, 5)) for _ in range(2)) for _ in range(P.dim)]
    periodic = [data.draw(st.booleans()) for _ in range(P.dim)]
    whole = whole_of(sizes)
    x = block_of(whole, P, sizes)
    layer = dnn.HaloExchange(P, widths, periodic=periodic)
    check_adjoint(layer, x)
    y = layer(x)
    if not P.active:
        return
    expected = whole
    for d, own in enumerate(block_slices(P, whole.shape, sizes)):
        wanted = torch.arange(own.start - widths[d][0], own.stop + widths[d][1])
        n = whole.shape[d]
        if n == 0:
            expected = expected.new_zeros([len(wanted) if e == d else m for e, m in enumerate(expected.shape)])
            continue
        outside = ((wanted < 0) | (wanted >= n)).nonzero().flatten()
        expected = expected.index_select(d, wanted % n)
        if not periodic[d]:
            expected = expected.index_fill(d, outside, 0.0)
    assert same_bits(y, expected)
