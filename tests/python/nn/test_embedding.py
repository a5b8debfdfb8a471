"""Embeddings whose table is split over groups of workers, on the ranks of the indices or on others."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from support.blocks import block_of, blocks_of, grid, grid_shapes
from support.families import embedding as family
from support.ranks import draws, job, on_all_ranks, raises_everywhere
from support.sequential import assert_equals_sequential


@st.composite
def splits(draw):
    """Shapes of the indices, of P_x and of P_w, and the ranks of both."""
    dims = draw(st.integers(1, 3))
    shape = draw(st.lists(st.integers(0, 5), min_size=dims, max_size=dims))
    workers = draw(st.sampled_from(grid_shapes(dims, job.size)))
    groups = [draw(st.sampled_from(sorted({1, n}))) for n in workers]
    room = job.size // torch.Size(groups).numel()
    table = draw(st.sampled_from(grid_shapes(2, room)))
    of_x, of_w = (draw(st.permutations(range(job.size))) for _ in range(2))
    P_w = table if set(groups) <= {1} and draw(st.booleans()) else (*groups, *table)
    return shape, workers, P_w, of_x[: torch.Size(workers).numel()], of_w[: torch.Size(P_w).numel()]


@draws(240)
@given(
    splits(),
    st.sampled_from(list(family.OPTIONS.values())),
    st.sampled_from(["owner", "sharded"]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.data(),
)
@on_all_ranks
def test_equals_embedding(P_world, drawn, options, layout, table, data):
    """On any partitions, with any options, wherever the table lives."""
    shape, workers, of_table, ranks_x, ranks_w = drawn
    rows, features = table
    if options.get("padding_idx") is not None:
        rows = max(rows, 2)
    if 0 in shape:  # torch has no second derivatives
        options = {**options, "second": False}
    example = family.example(shape, rows, features, **options)
    P_w = grid(P_world, of_table, ranks_w)
    example = dataclasses.replace(
        example, layer=lambda twin, P_x: dnn.DistributedEmbedding.from_sequential(twin, P_x, P_w)
    )
    sizes = data.draw(blocks_of(shape, workers))
    assert_equals_sequential(example, grid(P_world, workers, ranks_x), sizes, layout)


def test_index_out_of_range(P_world):
    """On one rank: all raise, with its number, and a good call works after it."""
    P_x = grid(P_world, (job.size,))
    for options in ({}, {"P_w": grid(P_world, (job.size, 1))}):
        layer = dnn.DistributedEmbedding(P_x, 5, 2, **options)
        good = torch.arange(3)
        for wrong in (torch.tensor([0, 5]), torch.tensor([-1, 1, 2])):
            for known in (False, True):  # before and after a good call
                indices = wrong if job.rank == job.size - 1 else good[: len(wrong)]
                raises_everywhere(
                    IndexError,
                    f"worker {job.size - 1} of P_x has indices from .*5 rows",
                    lambda layer=layer, indices=indices: layer(indices),
                )
                if known:
                    assert layer(good).shape == (3, 2)
        raises_everywhere(RuntimeError, "dtype int64 or int32", lambda layer=layer, good=good: layer(good.float()))


def test_sparse_gradients(P_world):
    """Each block of the table has one worker: its gradient has the rows that were looked up, as torch's has."""
    x = family.indices((4, 3), 6)
    twin = family.made(6, 4, sparse=True, padding_idx=2)
    P_x = grid(P_world, (job.size, 1))
    layer = dnn.DistributedEmbedding.from_sequential(twin, P_x, P_w=grid(P_world, (job.size, 1)))
    y = layer(block_of(x, P_x))
    (twin(x) ** 2).sum().backward()
    (y**2).sum().backward()
    assert layer.weight.grad.is_sparse
    start, stop = layer.layouts["weight"].intervals[0]
    expected, gradient = twin.weight.grad.coalesce(), layer.weight.grad.coalesce()
    within = (expected.indices()[0] >= start) & (expected.indices()[0] < stop)
    assert torch.equal(gradient.indices()[0] + start, expected.indices()[0][within])
    torch.testing.assert_close(gradient.values(), expected.values()[within])


@pytest.mark.mpi(min_size=2)
def test_sparse_gradients_are_not_summed(P_world):
    P_x = grid(P_world, (job.size,))
    for layout in ("owner", "sharded", "replicated"):
        with distdl.parameter_layout(layout):
            raises_everywhere(ValueError, "sparse=True where", lambda: dnn.DistributedEmbedding(P_x, 5, 2, sparse=True))
    raises_everywhere(
        ValueError,
        "as in torch.nn",
        lambda: dnn.DistributedEmbedding(P_x, 5, 2, sparse=True, scale_grad_by_freq=True),
    )


def test_partitions_that_do_not_fit(P_world):
    P_x = grid(P_world, (1, job.size))
    for shape in ((1,), (1, 1, 1), (1, job.size + 1, 1, 1)[: 4 if job.size == 1 else 3]):
        if torch.Size(shape).numel() > job.size:
            continue
        P_w = grid(P_world, shape)
        raises_everywhere(ValueError, "P_w must be", lambda P_w=P_w: dnn.DistributedEmbedding(P_x, 5, 2, P_w=P_w))
    P_w = grid(P_world, (1, job.size))
    for norm_type in (0.0, float("inf")):
        options = {"max_norm": 1.0, "norm_type": norm_type, "P_w": P_w}
        if job.size > 1:
            raises_everywhere(
                ValueError, "positive and finite", lambda o=options: dnn.DistributedEmbedding(P_x, 5, 2, **o)
            )


@pytest.mark.parametrize("freeze", [True, False])
def test_from_pretrained(P_world, freeze):
    table = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
    local_table = table if job.rank == job.size - 1 else torch.zeros_like(table)
    layer = dnn.DistributedEmbedding.from_pretrained(
        grid(P_world, (job.size,)), local_table, freeze, P_w=grid(P_world, (job.size, 1)), root=job.size - 1
    )
    state = distdl.sequential_state_dict(layer)  # on rank 0 alone
    assert all(torch.equal(value, table) for value in state.values())
    assert layer.weight.requires_grad == (not freeze)
    x = torch.tensor([3, 1])
    assert torch.equal(layer(x), table[x])
    raises_everywhere(
        TypeError, "2 dimensions", lambda: dnn.DistributedEmbedding.from_pretrained(P_world, table.flatten())
    )


@pytest.mark.parametrize("options", family.OPTIONS.values(), ids=family.OPTIONS)
def test_copies(P_world, options):
    """Each worker's copy of the table is renormalized, and has the gradient, as the twin's."""
    options = {name: value for name, value in options.items() if name != "second"}
    x, twin, P_x = family.indices((2 * job.size, 3), 6), family.made(6, 4, **options), grid(P_world, (job.size, 1))
    with distdl.parameter_layout("replicated"):
        layer = dnn.DistributedEmbedding.from_sequential(twin, P_x)
    (twin(x) ** 2).sum().backward()
    (layer(block_of(x, P_x)) ** 2).sum().backward()
    torch.testing.assert_close(layer.weight, twin.weight)
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("split", [None, family.in_rows, family.in_features])
def test_bags_with_offsets(P_world, mode, include_last_offset, weighted, split):
    """Each worker has bags of its own, of any sizes and none; the third rank's is empty."""
    if weighted and mode != "sum":
        return
    torch.manual_seed(1)
    twin = torch.nn.EmbeddingBag(
        7, 3, mode=mode, include_last_offset=include_last_offset, padding_idx=1, dtype=torch.float64
    )
    sizes = [[2, 0, 3], [1], [], [4, 1]][: job.size]
    every = [size for bags in sizes for size in bags]
    x = family.indices((sum(every),), 7)
    weights = torch.linspace(0.5, 2, len(x), dtype=torch.float64) if weighted else None

    def offsets(bags):
        starts = [0, *torch.tensor(bags, dtype=torch.int64).cumsum(0).tolist()]
        return torch.tensor(starts if include_last_offset else starts[:-1], dtype=torch.int64)

    start = sum(map(sum, sizes[: job.rank]))
    part = slice(start, start + sum(sizes[job.rank]))
    P_w = None if split is None else grid(P_world, split(job.size))
    layer = dnn.DistributedEmbeddingBag.from_sequential(twin, grid(P_world, (job.size,)), P_w)
    own, of_twin = (None if weights is None else w.clone().requires_grad_() for w in (weights, weights))
    if own is not None:
        own = own.detach()[part].requires_grad_()
    expected = twin(x, offsets(every), of_twin)
    first = sum(map(len, sizes[: job.rank]))
    y = layer(x[part], offsets(sizes[job.rank]), own)
    torch.testing.assert_close(y, expected[first : first + len(sizes[job.rank])])
    expected.square().sum().backward()
    y.square().sum().backward()
    if own is not None:
        torch.testing.assert_close(own.grad, of_twin.grad[part])
    if layer.weight.numel():
        slices = tuple(slice(*interval) for interval in layer.layouts["weight"].intervals)
        torch.testing.assert_close(layer.weight.grad, twin.weight.grad[slices])


def test_bags_that_do_not_fit(P_world):
    P_x, x = grid(P_world, (job.size,)), torch.arange(4)
    make = dnn.DistributedEmbeddingBag
    if job.size > 1:
        raises_everywhere(ValueError, r"must be \[bags", lambda: make(grid(P_world, (1, job.size)), 5, 2))
    raises_everywhere(ValueError, "as in torch.nn", lambda: make(P_x, 5, 2, mode="max", scale_grad_by_freq=True))
    layer = make(P_x, 5, 2)
    last = job.rank == job.size - 1
    raises_everywhere(ValueError, "offsets", lambda: layer(x))
    for wrong in ([1, 2], [0, 3, 2], [0, 5]):
        offsets = torch.tensor(wrong) if last else torch.tensor([0, 2])
        raises_everywhere(IndexError, "has offsets", lambda offsets=offsets: layer(x, offsets))
    raises_everywhere(
        ValueError, "no per_sample_weights", lambda: layer(x, torch.tensor([0]), per_sample_weights=torch.ones(4))
    )
    assert layer(x, torch.tensor([0, 2])).shape == (2, 2)


def test_bags_of_size_0(P_world):
    """torch.nn refuses them, and so do workers without bags."""
    layer = dnn.DistributedEmbeddingBag(grid(P_world, (job.size, 1)), 5, 2)
    x = torch.zeros(0 if job.rank else 2, 0, dtype=torch.int64)
    raises_everywhere(RuntimeError, "bags of size 0", lambda: layer(x))
    assert layer(x.new_zeros(2, 1)).shape == (2, 2)
