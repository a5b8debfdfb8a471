"""Unpooling and fractional pooling beside torch.nn's, on any blocks."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from support.blocks import OUTPUT_BLOCKS, assemble, block_of, grid, spatial_sizes
from support.poolings import CONTENTS, one_or_each, split_tensors
from support.ranks import draws, job, on_all_ranks, raises_everywhere
from support.tensors import same_bits, values


@draws(120)
@given(data=st.data(), dims=st.integers(1, 3))
@on_all_ranks
def test_unpooling(P_world, data, dims):
    """Any indices without repetition, near or far, in tensors of any size that the options lead to."""
    shape, P_x, sizes = data.draw(split_tensors(P_world, dims))
    options = {"kernel_size": one_or_each(data.draw, st.integers(1, 3), dims)}
    if data.draw(st.booleans()):
        options |= {"stride": one_or_each(data.draw, st.integers(1, 3), dims), "padding": data.draw(st.integers(0, 1))}
    twin = getattr(torch.nn, f"MaxUnpool{dims}d")(**options)
    x = values(shape)
    try:
        whole = twin(x, torch.zeros(shape, dtype=torch.long))
    except (RuntimeError, ValueError):
        assume(False)
    space, count = whole.shape[-dims:], x.shape[-dims:].numel()
    assume(count <= space.numel())
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    draws_of = [torch.randperm(space.numel(), generator=generator)[:count] for _ in range(x.shape[:-dims].numel())]
    indices = torch.stack(draws_of).view(shape) if draws_of else torch.zeros(shape, dtype=torch.long)

    layer = getattr(dnn, f"DistributedMaxUnpool{dims}d")(P_x, **options)
    y_sizes = [*sizes[:-dims], *[None] * dims]
    whole_x, block = x.clone().requires_grad_(), block_of(x, P_x, sizes).requires_grad_()
    result, own = twin(whole_x, indices), layer(block, block_of(indices, P_x, sizes))
    assert same_bits(assemble(own, P_x, result.shape, y_sizes), result.detach())
    cotangent = values(result.shape, seed=1)
    (expected,) = torch.autograd.grad(result, whole_x, cotangent)
    (gradient,) = torch.autograd.grad(own, block, block_of(cotangent, P_x, y_sizes).reshape(own.shape))
    assert same_bits(assemble(gradient, P_x, shape, sizes), expected)


def test_repeated_indices(P_world):
    """The last element with an index remains, and all of them get its gradient."""
    P_x = grid(P_world, [1, 1, job.size])
    x, indices = values([1, 2, 8]) + 1, torch.tensor([[[0, 5, 5, 0, 7, 5, 15, 15], [3] * 8]])
    layer, block = dnn.DistributedMaxUnpool1d(P_x, 2), block_of(x, P_x).requires_grad_()
    y = layer(block, block_of(indices, P_x))
    expected = torch.zeros(1, 2, 16, dtype=x.dtype)
    for c in range(2):
        for i in range(8):
            expected[0, c, indices[0, c, i]] = x[0, c, i]
    assert same_bits(assemble(y, P_x, [1, 2, 16]), expected)
    cotangent = values([1, 2, 16], seed=1)
    y.backward(block_of(cotangent, P_x))
    assert same_bits(assemble(block.grad, P_x, x.shape), cotangent.gather(-1, indices))


def test_undoes_max_pooling(P_world):
    """Sizes from call to call, and what the pooling layer of this package returns."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    pool, unpool = dnn.DistributedMaxPool2d(P_x, 2, return_indices=True), dnn.DistributedMaxUnpool2d(P_x, 2)
    for shape in ([2, 1, 9, 5], [1, 2, 9, 4], [2, 1, 8, 5]):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        expected = F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape)
        for output_size in (x.shape, tuple(x.shape[2:])):
            y = unpool(*pool(block_of(x, P_x)), output_size)
            assert same_bits(assemble(y, P_x, x.shape), expected)


WRONG_INDEX = {"too large": 16, "negative": -1, "far": 1 << 40}


@pytest.mark.parametrize("wrong", WRONG_INDEX.values(), ids=WRONG_INDEX)
def test_an_index_of_one_rank_that_is_out_of_range_raises_on_all(P_world, wrong):
    P_x = grid(P_world, [1, 1, job.size, 1])
    layer, x = dnn.DistributedMaxUnpool2d(P_x, 2), torch.ones(1, 1, 2 * job.size, 2)
    good = torch.zeros_like(x, dtype=torch.long)
    bad = good.clone()
    bad.view(-1)[-1] = wrong if wrong != 16 else 16 * job.size
    with pytest.raises(RuntimeError, match="max index"):
        F.max_unpool2d(x, bad, 2)
    for _ in range(2):  # in the first call, and after good calls
        raises_everywhere(RuntimeError, "invalid max index", lambda: layer(block_of(x, P_x), block_of(bad, P_x)))
        layer(block_of(x, P_x), block_of(good, P_x))


def test_what_torch_refuses_raises_on_all(P_world):
    P_x = grid(P_world, [1, 1, job.size, 1])
    layer, x = dnn.DistributedMaxUnpool2d(P_x, 2), block_of(torch.ones(1, 1, 2 * job.size, 2), P_x)
    good = torch.zeros_like(x, dtype=torch.long)
    name = "DistributedMaxUnpool2d: "
    raises_everywhere(RuntimeError, name, lambda: layer(x, good.int()))
    raises_everywhere(RuntimeError, name, lambda: layer(x, good[..., :1]))
    raises_everywhere(ValueError, name, lambda: layer(x, good, (9 * job.size, 4)))
    raises_everywhere(ValueError, name, lambda: layer(x, good, (4,) * 3))
    raises_everywhere(NotImplementedError, name, lambda: layer(x.long(), good))
    layer(x, good)


@draws(120)
@given(
    data=st.data(), dims=st.integers(2, 3), output_blocks=st.sampled_from(OUTPUT_BLOCKS), by_ratio=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]), contents=st.sampled_from(sorted(CONTENTS)),
)  # fmt: skip
@on_all_ranks
def test_fractional_pooling(P_world, data, dims, output_blocks, by_ratio, dtype, contents):
    """Samples drawn by torch with the same seed; ties, infinities and NaN, and the indices."""
    shape, P_x, sizes = data.draw(split_tensors(P_world, dims))
    options = {"kernel_size": one_or_each(data.draw, st.integers(1, 4), dims), "return_indices": True}
    if by_ratio:
        options["output_ratio"] = one_or_each(data.draw, st.floats(0.1, 0.9), dims)
    else:
        options["output_size"] = one_or_each(data.draw, st.integers(1, 6), dims)
    x = torch.tensor(CONTENTS[contents], dtype=dtype)[values(shape, torch.int64)]
    twin = getattr(torch.nn, f"FractionalMaxPool{dims}d")(**options)
    layer = getattr(dnn, f"DistributedFractionalMaxPool{dims}d")(P_x, **options, output_blocks=output_blocks)
    whole, block = x.clone().requires_grad_(), block_of(x, P_x, sizes).requires_grad_()
    torch.manual_seed(5)
    try:
        expected = twin(whole)
    except RuntimeError as error:
        if P_x.active:
            with pytest.raises(type(error), match="Fractional"):
                layer(block)
        return
    torch.manual_seed(5 if not P_x.active or P_x.rank == 0 else 6)  # the first worker's count
    y = layer(block)
    place = lambda d, o, n, m: (2 * o + 1) * n // (2 * m)  # noqa: E731
    space = spatial_sizes(output_blocks, place, dims, x.shape, expected[0].shape, P_x.shape, sizes)
    y_sizes = [*sizes[:-dims], *space]
    for result, other in zip(y, expected, strict=True):
        whole_y = assemble(result, P_x, other.shape, y_sizes)
        assert whole_y.dtype == other.dtype
        assert torch.allclose(whole_y, other.detach(), rtol=0, atol=0, equal_nan=True)  # torch has NaN of several bits
    cotangent = values(expected[0].shape, dtype, seed=1)
    (gradient,) = torch.autograd.grad(expected[0], whole, cotangent)
    (own,) = torch.autograd.grad(y[0], block, block_of(cotangent, P_x, y_sizes).reshape(y[0].shape))
    assert same_bits(assemble(own, P_x, shape, sizes), gradient)


def test_generators_stay_in_step(P_world):
    """Workers draw what torch draws, so that what is drawn afterwards is the same, too; and each call draws anew."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    x = torch.randn(1, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    twin, layer = torch.nn.FractionalMaxPool2d(2, 5), dnn.DistributedFractionalMaxPool2d(P_x, 2, 5)
    torch.manual_seed(3)
    expected = [twin(x), twin(x), torch.rand(3)]
    torch.manual_seed(3)
    ys = [assemble(layer(block_of(x, P_x)), P_x, [1, 1, 5, 5]) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip([*ys, torch.rand(3)], expected, strict=True))
    assert not torch.equal(*ys)


def test_samples_are_in_the_state(P_world):
    """As in torch.nn."""
    samples = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0))
    twin = torch.nn.FractionalMaxPool2d(2, 5, _random_samples=samples)
    layer = dnn.DistributedFractionalMaxPool2d.from_sequential(twin, grid(P_world, [1, 1, job.size, 1]))
    state = distdl.sequential_state_dict(layer)
    assert job.rank or (list(state) == list(twin.state_dict()) and torch.equal(state["_random_samples"], samples))
    distdl.load_sequential(layer, twin.state_dict())


def test_copies_and_samples(P_world):
    """A copy pools as the layer does."""
    P_x, samples = grid(P_world, [1, 1, job.size, 1]), torch.full((1, 1, 2), 0.3)
    layer = dnn.DistributedFractionalMaxPool2d(P_x, 2, 5, _random_samples=samples)
    x = block_of(values([1, 1, 12, 12], torch.float32), P_x)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert list(layer.state_dict()) == ["_random_samples"]
    assert "_random_samples=tensor" in repr(layer)
    bad = dnn.DistributedFractionalMaxPool2d(P_x, 2, 5, _random_samples=samples.double())
    raises_everywhere(RuntimeError, "FractionalMaxPool2d: ", lambda: bad(x))


def test_output_sizes_and_indices_of_other_types(P_world):
    """A tensor of integers is a size; floats are none, and all ranks hear of it."""
    layer = dnn.DistributedMaxUnpool2d(grid(P_world, (1, 1, job.size, 1)), 2)
    x, at = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2, dtype=torch.long)
    size = [2 * job.size + 1, 5]
    result = layer(x, at, torch.tensor(size))
    assert torch.equal(result, layer(x, at, size))
    raises_everywhere(TypeError, r"MaxUnpool2d: output_size=\[2.0, 4.0\]", lambda: layer(x, at, [2.0, 4.0]))
    raises_everywhere(TypeError, "MaxUnpool2d: output_size=4", lambda: layer(x, at, 4))
    wrong = at if job.rank < job.size - 1 else [1]
    raises_everywhere(TypeError, "indices of rank .* of type list", lambda: layer(x, wrong))
    layer(x, at)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_samples_that_are_no_numbers(P_world, value):
    samples = torch.tensor([[[0.5, value]]])
    make = dnn.DistributedFractionalMaxPool2d
    P_x = grid(P_world, (1, 1, job.size, 1))
    raises_everywhere(ValueError, "finite", lambda: make(P_x, 2, output_size=2, _random_samples=samples))
