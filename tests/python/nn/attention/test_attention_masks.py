"""What masks, dropout and the scale make of the scores of attention, and how precise it is for large scores."""

import functools

import pytest
import torch

import distdl.nn as dnn
from distdl.nn.base.random_numbers import draw_key, random_mask
from support.blocks import grid, grid_shapes
from support.families.attention import boolean, scores
from support.ranks import job
from support.sequential import block, joined_blocks


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2)
def test_keys_by_keyword_behind_a_gap(P_world):
    """The arguments of MultiheadAttention stand in torch.nn's order, also by name."""
    torch.manual_seed(0)
    twin = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    P = grid(P_world, [1, job.size, 1])
    layer = dnn.DistributedMultiheadAttention.from_sequential(twin, P)
    x, mask = scores((2, 4, 4), 1), boolean(4, 4) & ~torch.eye(4, dtype=torch.bool)
    own = block(x, P, (0, 1, None))
    expected = twin(x, x, x, None, False, mask)[0]
    result, weights = layer(own, own, own, None, False, block(mask, P, (1, None)))
    assert weights is None
    assert torch.allclose(joined_blocks(result, P, x.shape, (0, 1, None)), expected, rtol=0, atol=1e-14)
    result, _ = layer(own, own, own, attn_mask=block(mask, P, (1, None)), need_weights=False)
    assert torch.allclose(joined_blocks(result, P, x.shape, (0, 1, None)), expected, rtol=0, atol=1e-14)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", [None, "heads", "ring"])
def test_a_mask_with_gradients(P_world, method):
    """A bias that is learned, in rows; and keys that alone ask for gradients, twice."""
    q, k, v = (scores((2, 4, 5, 3), seed) for seed in (1, 2, 3))
    bias, k = scores((4, 5, 5), 4).requires_grad_(), k.requires_grad_()
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
    expected = torch.autograd.grad(whole.square().sum(), (k, bias))
    P, cut = grid(P_world, [1, 1, job.size, 1]), (None, 2, None)
    own = [block(x.detach(), P, (0, 1, 2, 3)) for x in (q, k, v)] + [block(bias.detach(), P, cut)]
    leaves = [own[1].requires_grad_(), own[3].requires_grad_()]
    loss = dnn.DistributedScaledDotProductAttention(P, method=method)(*own).square().sum()
    for _ in range(2):
        of_keys, of_bias = torch.autograd.grad(loss, leaves, retain_graph=True)
        assert torch.allclose(joined_blocks(of_keys, P, k.shape, (0, 1, 2, 3)), expected[0], rtol=0, atol=1e-12)
        assert torch.allclose(joined_blocks(of_bias, P, bias.shape, cut), expected[1], rtol=0, atol=1e-12)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", ["heads", "ring"])
def test_dropout_has_the_mask_of_the_whole(P_world, method):
    """Each weight is dropped by its index among all weights, whatever the partition."""
    q, k, v = (scores((2, 4, 5, 3), seed) for seed in (1, 2, 3))
    torch.manual_seed(5)
    key = draw_key()
    kept = random_mask(key, (2, 4, 5, 5), [(0, 2), (0, 4), (0, 5), (0, 5)], 0.4, dtype=torch.float64)
    expected = ((q @ k.mT / 3**0.5).softmax(-1) * kept) @ v
    for shape in grid_shapes(4, job.size, fixed=(3,)):
        P = grid(P_world, shape)
        torch.manual_seed(5)
        layer = dnn.DistributedScaledDotProductAttention(P, dropout_p=0.4, method=method)
        result = layer(*(block(x, P, (0, 1, 2, 3)) for x in (q, k, v)))
        assert torch.allclose(joined_blocks(result, P, q.shape, (0, 1, 2, 3)), expected, rtol=0, atol=1e-14)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", [None, "heads", "ring"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(("dtype", "low"), [(torch.float32, -1e9), (torch.float64, torch.finfo(torch.float64).min)])
def test_rows_of_low_scores(P_world, method, learned, dtype, low):
    """Where all keys of a query have a score that is finite and very low, all of them count."""
    q, k, v = (scores((2, 4, 5, 3), seed).to(dtype) for seed in (1, 2, 3))
    mask = torch.zeros(5, 5, dtype=dtype)
    mask[1], mask[3, :4] = low, low
    wholes = [x.clone().requires_grad_() for x in (q, k, v, mask)]
    expected = torch.ops.aten._scaled_dot_product_attention_math(*wholes)[0]
    derived = torch.autograd.grad(expected.square().sum(), wholes)
    P, cuts = grid(P_world, [1, 1, job.size, 1]), [(0, 1, 2, 3)] * 3 + [(2, None)]
    own = [block(x, P, cut).requires_grad_() for x, cut in zip((q, k, v, mask), cuts, strict=True)]
    own[3].requires_grad_(learned)
    result = dnn.DistributedScaledDotProductAttention(P, method=method)(*own)
    used = own if learned else own[:3]
    gradients = torch.autograd.grad(result.square().sum(), used)
    near = functools.partial(torch.allclose, rtol=0, atol=1e3 * torch.finfo(dtype).eps)
    assert near(joined_blocks(result, P, q.shape, cuts[0]), expected)
    for gradient, whole, cut in zip(gradients, derived, cuts, strict=False):
        assert near(joined_blocks(gradient, P, whole.shape, cut), whole)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("method", ["heads", "ring"])
def test_causal_with_low_padding(P_world, method):
    """The first queries look at keys alone that are padding, with a score that is finite and very low."""
    torch.manual_seed(0)
    twin = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    P = grid(P_world, [1, job.size, 1])
    layer = dnn.DistributedMultiheadAttention.from_sequential(twin, P, method=method)
    x, padding = scores((2, 6, 4), 1).float(), torch.zeros(2, 6)
    padding[:, :4] = -1e9
    mask = torch.full((6, 6), -torch.inf).triu(1)
    expected = twin(x, x, x, padding, True, mask)[0]
    own = block(x, P, (0, 1, None))
    for options in ({"is_causal": True}, {"attn_mask": block(mask, P, (1, None))}):
        result, _ = layer(own, own, own, block(padding, P, (0, 1)), need_weights=False, **options)
        assert torch.allclose(joined_blocks(result, P, x.shape, (0, 1, None)), expected, rtol=0, atol=1e-5)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", [None, "heads", "ring"])
def test_scores_times_0(P_world, method):
    """A scale of 0 is no scale that is absent."""
    q, k, v = (scores((2, 4, 5, 3), seed) for seed in (1, 2, 3))
    P = grid(P_world, [1, 1, job.size, 1])
    layer = dnn.DistributedScaledDotProductAttention(P, scale=0.0, method=method)
    result = layer(*(block(x, P, (0, 1, 2, 3)) for x in (q, k, v)))
    expected = v.mean(-2, keepdim=True).expand_as(q)
    assert torch.allclose(joined_blocks(result, P, q.shape, (0, 1, 2, 3)), expected, rtol=0, atol=1e-14)


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", ["heads", "ring"])
def test_merging_keeps_single_precision(P_world, method):
    """Large scores, and queries for which few keys count: the error is as large as the scores'."""
    q, k, v = (8 * scores((1, 4, 24, 8), seed) for seed in (1, 2, 3))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    P = grid(P_world, [1, 1, job.size, 1])
    layer = dnn.DistributedScaledDotProductAttention(P, is_causal=True, method=method)
    result = joined_blocks(layer(*(block(x.float(), P, (0, 1, 2, 3)) for x in (q, k, v))), P, q.shape, (0, 1, 2, 3))
    # A rounded score s changes its weight by eps * |s|, and so does the rounded logarithm of the sum.
    allowed = 2 * torch.finfo(torch.float32).eps * (q @ k.mT / 8**0.5).abs().max() * v.abs().max()
    assert (result - exact).abs().max() <= allowed
