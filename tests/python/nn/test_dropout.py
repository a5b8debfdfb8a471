"""Random numbers of layers: by global index, so that no partition, block or number of ranks changes them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import distdl
import distdl.nn as dnn
from distdl.nn.base import random_numbers as masks
from support.blocks import assemble, block_of, blocks_of, grid, grid_shapes
from support.ranks import draws, job, on_all_ranks, raises_everywhere, together
from support.tensors import values

CHANNELS = {"Dropout1d": (3,), "Dropout2d": (3, 4), "Dropout3d": (5,), "FeatureAlphaDropout": (2, 3, 4)}
KINDS = {"Dropout": (1, 2, 3, 4), "AlphaDropout": (1, 3), "RReLU": (1, 3), **CHANNELS}
ALPHA = 1.7580993408473766


def words(key, shape):
    """The word of each element of a whole tensor."""
    return masks.philox_words(key, torch.arange(math.prod(shape)).view(*shape))


def by_definition(name, x, key, p):
    """The result, from the key of the call, of what the docs say."""
    if name == "RReLU":
        return torch.where(x <= 0, x * (0.125 + words(key, x.shape).double() * ((1 / 3 - 0.125) * 2.0**-32)), x)
    drawn = [n if d < 2 or name not in CHANNELS else 1 for d, n in enumerate(x.shape)]
    kept = words(key, drawn) >= round(p * 2**32)
    if "Alpha" not in name:
        return torch.where(kept, x / (1 - p), 0 * x)
    scale = 1 / math.sqrt((1 - p) * (1 + p * ALPHA**2))
    return scale * torch.where(kept, x, torch.tensor(-ALPHA, dtype=x.dtype)) + scale * ALPHA * p


@st.composite
def calls(draw):
    """A layer's name, the shapes of an input and of its partition, its blocks, and the probability."""
    name = draw(st.sampled_from(list(KINDS)))
    dims = draw(st.sampled_from(KINDS[name]))
    shape = draw(st.lists(st.integers(0, 9), min_size=dims, max_size=dims))
    workers = draw(st.sampled_from(grid_shapes(dims, job.size)))
    ranks = draw(st.permutations(range(job.size)))[: torch.Size(workers).numel()]
    return name, shape, workers, ranks, draw(blocks_of(shape, workers)), draw(st.sampled_from([0.1, 0.5, 0.9]))


@draws(240)
@given(calls(), st.integers(0, 1 << 40), st.booleans())
@on_all_ranks
def test_a_function_of_key_and_index(P_world, drawn, seed, in_step):
    """Also where the generators of the ranks are not in step: worker 0's decides."""
    name, shape, workers, ranks, sizes, p = drawn
    P_x, x = grid(P_world, workers, ranks), values(shape) - 20
    layer = getattr(dnn, f"Distributed{name}")(P_x, **({} if name == "RReLU" else {"p": p}))
    torch.manual_seed(seed)
    key = masks.draw_key()
    torch.manual_seed(seed if in_step or job.rank == ranks[0] else seed + 1 + job.rank)
    y = layer(block_of(x, P_x, sizes))
    torch.testing.assert_close(assemble(y, P_x, shape, sizes), by_definition(name, x, key, p), rtol=1e-14, atol=1e-14)
    if in_step:  # each rank drew one number
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        masks.draw_key()
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.bool], ids=str)
@pytest.mark.ranks(1)
def test_masks_of_all_dtypes(dtype):
    shape, part = (5, 70, 13), [(1, 4), (3, 68), (2, 13)]
    key = 0x7654321076543210
    mask = masks.random_mask(key, shape, part, 0.3, dtype=dtype)
    kept = (words(key, shape) >= round(0.3 * 2**32))[1:4, 3:68, 2:13]
    scaled = kept.to(dtype).div_(1 - 0.3) if dtype.is_floating_point else kept
    assert mask.dtype == dtype
    assert torch.equal(mask, scaled)


@pytest.mark.ranks(1)
def test_the_numbers_of_other_devices():
    """They are made by tensor operations, and are the same."""
    shape, part, key = (9, 33, 7), [(2, 9), (1, 30), (0, 7)], 12345678901234567
    block = torch.empty([stop - start for start, stop in part])
    by_tensors = masks.fill_block(block, key, shape, part, lambda numbers: numbers.double() * 2.0**-32)
    assert torch.equal(by_tensors, masks.random_uniform(key, shape, part, 0.0, 1.0))


@pytest.mark.ranks(1)
@pytest.mark.parametrize("p", [0.0, 0.001, 0.25, 0.5, 0.999])
def test_frequencies(p):
    """Within 5 standard deviations of a binomial distribution, by rows, by columns and of neighbors."""
    n = 1024
    dropped = 1.0 - masks.random_mask(17, (n, n), [(0, n), (0, n)], p, dtype=torch.bool).double()
    for sample, q in ((dropped, p), (dropped[:, 1:] * dropped[:, :-1], p * p), (dropped[1:] * dropped[:-1], p * p)):
        assert abs(float(sample.mean()) - q) <= 5 * math.sqrt(q * (1 - q) / sample.numel())
    for along in (0, 1):
        assert float((dropped.mean(along) - p).abs().max()) <= 6 * math.sqrt(p * (1 - p) / n)


def test_fresh_in_each_call_and_layer(P_world):
    P_x = grid(P_world, (1, job.size))
    first, second = (dnn.DistributedDropout(P_x) for _ in range(2))
    x = torch.ones(8, 8 * job.size)
    results = [assemble(layer(block_of(x, P_x)), P_x, x.shape) for layer in (first, first, second)]
    assert not any(torch.equal(a, b) for a, b in zip(results, results[1:] + results[:1], strict=True))


@pytest.mark.parametrize("name", ["Dropout", "AlphaDropout", "Dropout1d", "RReLU"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_the_same_again_under_checkpointing(P_world, name, use_reentrant):
    P_x = grid(P_world, (1, job.size, 1))
    layer, again = getattr(dnn, f"Distributed{name}")(P_x), None
    x = block_of(values((4, 2 * job.size, 5)) - 20, P_x)
    gradients = []
    for how in (lambda f, x: checkpoint(f, x, use_reentrant=use_reentrant), lambda f, x: f(x)):
        torch.manual_seed(5 + job.rank)  # out of step
        again = x.clone().requires_grad_()
        y = how(lambda x: layer(x) * layer(x.exp()), again)
        torch.rand(3)  # numbers drawn between the passes change nothing
        y.sum().backward()
        gradients.append((y.detach(), again.grad))
    for tensor, other in zip(*gradients, strict=True):
        assert torch.equal(tensor, other)


@pytest.mark.parametrize("name", ["Dropout", "Dropout1d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"])
def test_in_place(P_world, name):
    """The result is the input's memory, as in torch.nn, with the same values and gradients."""
    P_x = grid(P_world, (1, job.size, 1))
    x = block_of(values((4, 2 * job.size, 5)) - 20, P_x)
    results = []
    for inplace in (True, False):
        layer = getattr(dnn, f"Distributed{name}")(P_x, inplace=inplace)
        torch.manual_seed(5)
        leaf = x.clone().requires_grad_()
        copy = leaf * 2
        y = layer(copy)
        assert (y.data_ptr() == copy.data_ptr()) == inplace
        (g,) = torch.autograd.grad(y.sum(), leaf)
        results.append((y.detach(), g))
    for tensor, other in zip(*results, strict=True):
        assert torch.equal(tensor, other)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_is_drawn_for_all_or_none(P_world, p):
    layer = dnn.DistributedDropout(grid(P_world, (job.size,)), p)
    state = torch.get_rng_state()
    y = layer(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert bool((y == 1 - p).all())


@pytest.mark.mpi(min_size=2)
def test_ranks_in_different_modes(P_world):
    """Training on some ranks alone is a mistake, which all of them hear of; then the next call works."""
    layer = dnn.DistributedDropout(grid(P_world, (job.size,)))
    layer(torch.ones(3))
    layer.train(job.rank == 0)
    raises_everywhere(ValueError, "with random numbers", lambda: layer(torch.ones(3)))
    layer.train()
    layer(torch.ones(3))


def test_as_sequential_keeps_the_generators_in_step(P_world):
    """Also on ranks outside of P_x."""
    P_x = grid(P_world, (1, max(1, job.size - 1)))
    layer = dnn.DistributedDropout(P_x, 0.3, as_sequential=True)
    torch.manual_seed(9)
    x = torch.ones(3, 7)
    results = [assemble(layer(block_of(x, P_x)), P_x, x.shape) for _ in range(2)]
    own = torch.rand(1)
    torch.manual_seed(9)
    assert all(torch.equal(y, torch.nn.functional.dropout(x, 0.3)) for y in results)
    assert set(together(float(own))) == {float(torch.rand(1))}


def test_without_the_structure_check(P_world):
    """The key is told where no vote is held."""
    P_x = grid(P_world, (job.size,))
    layer, x = dnn.DistributedDropout(P_x), torch.ones(8 * job.size)
    layer(block_of(x, P_x))
    with distdl.structure_check(False):
        layer(block_of(x, P_x))
        torch.manual_seed(3 + job.rank)
        y = layer(block_of(x, P_x))
    torch.manual_seed(3)
    assert torch.equal(assemble(y, P_x, x.shape), by_definition("Dropout", x, masks.draw_key(), 0.5))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["Dropout", "Linear", "L1Loss", "Pad"])
def test_checkpoint_where_some_ranks_have_no_block(P_world, name):
    """All ranks compute the call again, also those that save nothing by themselves."""
    P_x, first = grid(P_world, (1, 1), [job.size - 1]), grid(P_world, (1, 1))
    make = {
        "Dropout": lambda: dnn.DistributedDropout(P_x, as_sequential=True),
        "Linear": lambda: dnn.DistributedLinear(P_x, first, first, 4, 4, dtype=torch.float64),
        "L1Loss": lambda: dnn.DistributedL1Loss(P_x),
        "Pad": lambda: dnn.DistributedPad(P_x, (1, 1), "reflect"),
    }
    layer, x = make[name](), block_of(values((3, 4)), P_x).requires_grad_()
    call = (lambda x: layer(x, x.detach() - 1)) if name == "L1Loss" else layer
    gradients = []
    for again in (lambda x: checkpoint(call, x, use_reentrant=False), call):
        torch.manual_seed(5)
        gradients.append(torch.autograd.grad(again(x * 1.0).sum(), x)[0])
    assert torch.equal(*gradients)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("as_sequential", [False, True])
def test_options_that_differ_on_one_rank(P_world, as_sequential):
    """All ranks hear of a change on a rank; then the next call works."""
    layer = dnn.DistributedDropout(grid(P_world, (job.size,)), as_sequential=as_sequential)
    x = torch.ones(3)
    layer(x)
    layer.p = 0.1 if job.rank == 0 else 0.5
    raises_everywhere(ValueError, r"p=0.1 \(it was constructed with 0.5\)", lambda: layer(x))
    layer.p = 0.5
    layer.train(job.rank != 0)
    raises_everywhere(ValueError, "in evaluation.*in training", lambda: layer(x))
    layer.train()
    layer(x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_any_dtype_in_evaluation(P_world, dtype):
    """As in torch.nn, which returns the input; in training integers are refused."""
    layer, x = dnn.DistributedDropout(grid(P_world, (job.size,))).eval(), torch.ones(3, dtype=dtype)
    assert torch.equal(layer(x), x)
    layer.train()
    raises_everywhere(ValueError, "floating point", lambda: layer(x))
    layer.eval()
    assert torch.equal(layer(x), x)
