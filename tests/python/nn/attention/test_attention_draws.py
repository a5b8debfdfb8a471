"""Attention of drawn sizes, blocks and options beside its definition on the whole, in double precision."""

import pytest
import torch
from hypothesis import given, strategies

import distdl.nn as dnn
from distdl.nn.attention.methods import choice as plan
from distdl.nn.attention.methods import heads as by_heads
from distdl.nn.base.random_numbers import draw_key, random_mask
from support.blocks import grid, grid_shapes
from support.families.attention import heads, scores
from support.ranks import draws, job, on_all_ranks
from support.sequential import assert_equals_sequential, block, joined_blocks

# Of a result, relative to its largest element: roundings of the inputs are no part of it.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.half: 5e-3}
CUT = (0, 1, 2, None)


def defined(q, k, v, mask, kept, is_causal, scale):
    """Attention by its definition. A query that looks at no key has a result of 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    products = q @ k.mT * scale
    if is_causal:
        products = products.masked_fill(~torch.ones(products.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if mask is not None:
        products = products.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else products + mask
    nothing = (products == -torch.inf).all(-1, keepdim=True)
    weights = products.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return (weights if kept is None else weights * kept) @ v


def cuts_of(data, n, p):
    """The sizes of p blocks of n elements, empty blocks among them."""
    cuts = sorted(data.draw(strategies.lists(strategies.integers(0, n), min_size=p - 1, max_size=p - 1)))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, n], strict=True)]


def drawn_mask(data, kind, shape):
    """A mask, or a bias, that is broadcast along some dimensions other than the keys'; with its cut."""
    extents = [n if data.draw(strategies.booleans()) else 1 for n in shape[:-1]]
    cut = tuple(d if n > 1 else None for d, n in enumerate(extents))
    values = scores((*extents, shape[-1]), 6)
    return (values > -0.3 if kind == "boolean" else values), (*cut, None)


def near(result, whole, tolerance):
    """Whether a tensor of some precision is near a tensor in double precision."""
    result, whole = result.detach().double(), whole.detach()
    largest = float(whole.abs().max()) if whole.numel() else 0.0
    return result.shape == whole.shape and torch.allclose(result, whole, rtol=0, atol=tolerance * max(1.0, largest))


@pytest.mark.ranks(2, 3)
@draws(60)
@given(data=strategies.data())
@on_all_ranks
def test_any_call(P_world, data):
    """Values and gradients, in all dtypes, with blocks of their own of queries and of keys."""
    keys_heads, group = (data.draw(strategies.integers(1, 4)) for _ in range(2))
    batch, features, of_values = (data.draw(strategies.integers(1, 3)) for _ in range(3))
    rows, columns = (data.draw(strategies.integers(0, 9)) for _ in range(2))
    dtype = data.draw(strategies.sampled_from(list(TOLERANCE)))
    kind = data.draw(strategies.sampled_from(["none", "causal", "causal", "boolean", "added", "learned"]))
    dropout_p = data.draw(strategies.sampled_from([0.0, 0.0, 0.4]))
    method = data.draw(strategies.sampled_from([None, "heads", "ring"]))
    P = grid(P_world, data.draw(strategies.sampled_from(grid_shapes(4, job.size, fixed=(1, 3)))))
    sizes = [[cuts_of(data, batch, int(P.shape[0])), None, cuts_of(data, n, int(P.shape[2])), None]
             for n in (rows, columns)]  # fmt: skip
    sizes[1][0] = sizes[0][0]
    count = keys_heads * group
    shapes = (
        (batch, count, rows, features),
        (batch, keys_heads, columns, features),
        (batch, keys_heads, columns, of_values),
    )
    wholes = [scores(shape, seed).to(dtype).double() for seed, shape in enumerate(shapes)]
    where = [(CUT, sizes[0]), (CUT, sizes[1]), (CUT, sizes[1])]
    mask = None
    if kind in ("boolean", "added", "learned"):
        mask, cut = drawn_mask(data, kind, (batch, count, rows, columns))
        mask = mask if mask.dtype == torch.bool else mask.to(dtype).double()
        wholes, where = [*wholes, mask], [*where, (cut, sizes[0])]
    own = [
        block(x if x.dtype == torch.bool else x.to(dtype), P, cut, of)
        for x, (cut, of) in zip(wholes, where, strict=True)
    ]
    asking = 4 if kind == "learned" else 3
    for x in (*wholes[:asking], *own[:asking]):
        x.requires_grad_()
    torch.manual_seed(7)
    all_weights = (batch, count, rows, columns)
    kept = (
        random_mask(draw_key(), all_weights, [(0, n) for n in all_weights], 0.4, dtype=torch.float64)
        if dropout_p
        else None
    )
    expected = defined(*wholes[:3], wholes[3] if mask is not None else None, kept, kind == "causal", 0.7)
    torch.manual_seed(7)
    with pytest.MonkeyPatch.context() as patch:  # as for large tensors
        for module, name in ((plan, "FEW"), (plan, "LONG"), (by_heads, "FEW")):
            patch.setattr(module, name, data.draw(strategies.sampled_from([1, getattr(module, name)])))
        layer = dnn.DistributedScaledDotProductAttention(P, dropout_p, kind == "causal", 0.7, group > 1, method=method)
        result = layer(*own)
    assert result.dtype == dtype
    tolerance = TOLERANCE[dtype]
    assert near(joined_blocks(result, P, expected.shape, CUT, sizes[0]), expected, tolerance)
    gradient = torch.cos(torch.arange(expected.numel(), dtype=torch.double)).reshape(expected.shape)
    first = torch.autograd.grad(expected, wholes[:asking], gradient, create_graph=True)
    slope = block(gradient, P, CUT, sizes[0]).reshape(result.shape)
    grads = torch.autograd.grad(result, own[:asking], slope.to(dtype), retain_graph=True, materialize_grads=True)
    for local_block, whole, (cut, of) in zip(grads, first, where, strict=False):
        assert near(joined_blocks(local_block, P, whole.shape, cut, of), whole, 10 * tolerance)
    if dtype != torch.float64:
        return
    grads = torch.autograd.grad(result, own[:asking], slope.requires_grad_(), create_graph=True, materialize_grads=True)
    grads = torch.autograd.grad(sum(x.square().sum() for x in grads[:3]), own[:asking], materialize_grads=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first[:3]), wholes[:asking], materialize_grads=True)
    for local_block, whole, (cut, of) in zip(grads, second, where, strict=False):
        assert near(joined_blocks(local_block, P, whole.shape, cut, of), whole, 100 * tolerance)


@pytest.mark.ranks(2, 3)
@draws(40)
@given(data=strategies.data())
@on_all_ranks
def test_any_multihead(P_world, data):
    """MultiheadAttention with options and masks of all kinds."""
    options = {
        name: data.draw(strategies.booleans()) for name in ("bias", "add_bias_kv", "add_zero_attn", "batch_first")
    }
    batch = data.draw(strategies.sampled_from([None, 1, 3]))
    rows, columns = (data.draw(strategies.integers(1, 7)) for _ in range(2))
    call = {name: data.draw(strategies.booleans()) for name in ("need_weights", "average_attn_weights")}
    masks, boolean = {}, data.draw(strategies.booleans())

    def masking(*shape):
        """A mask of the kind of both masks; each query looks at the first key."""
        return (scores(shape, 4) > 0.5).index_fill(-1, torch.tensor([0]), False) if boolean else scores(shape, 4)

    if data.draw(strategies.booleans()):
        masks["key_padding_mask"] = masking(*[n for n in (batch, columns) if n])
    if data.draw(strategies.booleans()):
        masks["attn_mask"] = masking(*([(batch or 1) * 3] if data.draw(strategies.booleans()) else []), rows, columns)
    case = heads(
        rows, columns, batch or 0, data.draw(strategies.sampled_from([None, "heads", "ring"])),
        data.draw(strategies.sampled_from([None, 4])), call, masks, second=call["need_weights"], **options,
    )  # fmt: skip
    shape = data.draw(strategies.sampled_from(grid_shapes(case.dims, job.size, fixed=case.whole)))
    sizes = [None] * case.dims
    axis = 0 if case.dims == 2 or not options["batch_first"] else 1
    sizes[axis] = cuts_of(data, rows, shape[axis])
    assert_equals_sequential(case, grid(P_world, shape), sizes)
