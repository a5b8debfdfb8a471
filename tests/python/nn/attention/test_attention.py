"""Attention in blocks beside torch's on the whole: values and derivatives, in each way of sharing the work."""

import pytest
import torch
from hypothesis import given, strategies

import distdl.functional as df
import distdl.nn as dnn
from distdl import _core
from distdl.nn.attention.methods import choice as plan
from distdl.nn.attention.methods import heads as by_heads
from support.blocks import grid, grid_shapes
from support.families import Example
from support.families.attention import boolean, scores
from support.ranks import draws, job, on_all_ranks, raises_everywhere
from support.sequential import assert_equals_sequential, block, joined_blocks
from support.strides import channels_last, every_other, everyday, expanded, transposed
from support.tensors import values


class Attention(torch.nn.Module):
    """torch's attention of operations that it differentiates twice."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value, attn_mask=None):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
        return torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, **self.options)[0]


def example(
    batch=(2,), heads=4, keys_heads=None, rows=5, columns=5, features=3, values_features=None, mask=None, **options
):
    """An example on P_x of [*batch, heads, sequence, 1], from the method."""
    keys_heads, values_features = keys_heads or heads, values_features or features
    dims = len(batch) + 3
    inputs = [
        scores((*batch, heads, rows, features), 1),
        scores((*batch, keys_heads, columns, features), 2),
        scores((*batch, keys_heads, columns, values_features), 3),
    ]
    cut = tuple(range(dims))
    cuts = [cut] * 3
    if mask is not None:
        inputs.append(mask)
        last = mask.dim() - 1
        cuts.append(tuple(None if n == 1 or d == last else d + dims - mask.dim() for d, n in enumerate(mask.shape)))

    def of(method):
        return Example(
            lambda: Attention(**options),
            lambda: tuple(x.clone() for x in inputs),
            dims,
            tuple(cuts),
            (cut,),
            whole=(dims - 1,),
            layer=lambda twin, P: dnn.DistributedScaledDotProductAttention(P, method=method, **options),
        )

    return of


EXAMPLES = {
    "self": example(),
    "causal": example(is_causal=True),
    "fewer keys, causal": example(rows=6, columns=4, is_causal=True),
    "more keys, causal": example(rows=4, columns=7, is_causal=True),
    "cross": example(rows=5, columns=7, values_features=2, scale=0.3),
    "more features of values": example(rows=3, values_features=5),
    "grouped": example(heads=6, keys_heads=2, enable_gqa=True),
    "grouped, causal": example(heads=4, keys_heads=1, enable_gqa=True, is_causal=True),
    "boolean rows": example(mask=boolean(5, 5)),
    "boolean of all": example(mask=boolean(2, 4, 5, 6), columns=6),
    "added by heads": example(mask=scores((4, 5, 5), 6)),
    "keys alone": example(mask=boolean(2, 1, 2, 5)[..., :1, :]),
    "without batch": example(batch=(), heads=3),
    "two batches": example(batch=(2, 2), heads=2, rows=3, columns=3),
    "fewer heads": example(heads=1, rows=6, columns=4),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("heads", "method"), [(4, "heads"), (1, "ring")])
def test_workers_share_the_heads_if_each_gets_one(P_world, heads, method):
    layer = dnn.DistributedScaledDotProductAttention(grid(P_world, [1, 1, 2, 1]))
    q = torch.ones(1, heads, 3, 5)
    layer(q, q, q)
    assert layer._plan.method == method


@pytest.mark.shared
@pytest.mark.parametrize("method", [None, "heads", "ring"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_equals_torch(P_world, name, method):
    """On all partitions, in each way of sharing the work: values, first and second derivatives."""
    case = EXAMPLES[name](method)
    for shape in grid_shapes(case.dims, job.size, fixed=case.whole):
        if torch.Size(shape).numel() == job.size:
            assert_equals_sequential(case, grid(P_world, shape))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", [name for name in EXAMPLES if "causal" in name])
def test_balanced_ring(P_world, name, monkeypatch):
    """Each worker has two chunks of queries, and of each step the keys that these may see."""
    monkeypatch.setattr(plan, "LONG", 1)
    assert_equals_sequential(EXAMPLES[name]("ring"), grid(P_world, [1, 1, job.size, 1]))


@pytest.mark.ranks(2, 3)
@draws(60)
@given(data=strategies.data())
@on_all_ranks
def test_any_sizes(P_world, data):
    """Drawn extents, options, partitions and blocks, empty blocks among them."""
    small = strategies.integers(1, 5)
    keys_heads, group = data.draw(strategies.integers(1, 3)), data.draw(strategies.integers(1, 3))
    rows, columns, features, of_values, batch = (data.draw(small) for _ in range(5))
    heads = keys_heads * group
    shape = (batch, heads, rows, columns)
    kind = data.draw(strategies.sampled_from(["none", "causal", "boolean", "added"]))
    masked = [n if data.draw(strategies.booleans()) else 1 for n in shape[:-1]]
    mask = {"boolean": boolean(*masked, columns), "added": scores((*masked, columns), 6)}.get(kind)
    case = example(
        (batch,), heads, keys_heads, rows, columns, features, of_values, mask,
        enable_gqa=group > 1, is_causal=kind == "causal",
    )(data.draw(strategies.sampled_from([None, "heads", "ring"])))  # fmt: skip
    P = data.draw(strategies.sampled_from(grid_shapes(4, job.size, fixed=(3,))))

    def along(n, p):
        cuts = sorted(data.draw(strategies.lists(strategies.integers(0, n), min_size=p - 1, max_size=p - 1)))
        return [stop - start for start, stop in zip([0, *cuts], [*cuts, n], strict=True)]

    sizes = [along(batch, P[0]), None, along(rows, P[2]), None]
    assert_equals_sequential(case, grid(P_world, P), sizes)


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2)
def test_function(P_world):
    """The function takes the arguments of torch's, and the partition."""
    q, k, v = (scores((2, 4, 5, 3), seed) for seed in (1, 2, 3))
    P = grid(P_world, [1, 1, job.size, 1])
    own = [block(x, P, (0, 1, 2, 3)) for x in (q, k, v)]
    result = df.scaled_dot_product_attention(*own, P, is_causal=True, scale=0.5)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5)
    assert torch.allclose(joined_blocks(result, P, q.shape, (0, 1, 2, 3)), expected, rtol=0, atol=1e-14)


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2)
def test_features_are_not_split(P_world):
    """The message says what to split instead."""
    P = grid(P_world, [1, 1, job.size])
    raises_everywhere(ValueError, "split the sequence", lambda: dnn.DistributedMultiheadAttention(P, 4, 2))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", ["heads", "ring"])
@pytest.mark.parametrize("which", [0, 1, 3])
def test_gradients_of_one_rank(P_world, method, which):
    """Where the tensors of one rank alone ask for gradients, the others take part in their communication."""
    q, k, v, mask = (*(scores((2, 4, 5, 3), seed) for seed in (1, 2, 3)), scores((5, 5), 4))
    wholes = [x.clone().requires_grad_() for x in (q, k, v, mask)]
    expected = torch.nn.functional.scaled_dot_product_attention(*wholes)
    derived = torch.autograd.grad(expected.square().sum(), wholes)[which]
    P, cuts = grid(P_world, [1, 1, job.size, 1]), [(0, 1, 2, 3)] * 3 + [(2, None)]
    own = [block(x, P, cut) for x, cut in zip((q, k, v, mask), cuts, strict=True)]
    own[which].requires_grad_(job.rank == 0)
    result = dnn.DistributedScaledDotProductAttention(P, method=method)(*own)
    if result.requires_grad:
        result.square().sum().backward()
    if job.rank == 0:
        assert torch.allclose(own[which].grad, block(derived, P, cuts[which]), rtol=0, atol=1e-13)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("method", ["heads", "ring"])
def test_gradients_of_one_rank_past_frozen_parameters(P_world, method):
    """The keys of the others travel to the rank that asks for gradients, and their gradients back."""
    torch.manual_seed(0)
    twin = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64).requires_grad_(False)
    P, cut = grid(P_world, [1, job.size, 1]), (0, 1, None)
    layer = dnn.DistributedMultiheadAttention.from_sequential(twin, P, method=method)
    x = scores((2, 6, 4), 1).requires_grad_()
    expected = torch.autograd.grad(twin(x, x, x)[0].square().sum(), x)[0]
    own = block(x.detach(), P, cut).requires_grad_(job.rank == 0)
    result = layer(own, own, own, need_weights=False)[0]
    if result.requires_grad:
        result.square().sum().backward()
    if job.rank == 0:
        assert torch.allclose(own.grad, block(expected, P, cut), rtol=0, atol=1e-13)


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", ["heads", "ring"])
@pytest.mark.parametrize("large", [False, True])
def test_backward_pass_votes_once(P_world, method, large, monkeypatch):
    """However many exchanges there are, and groups of heads."""
    if large:
        for module in (plan, by_heads):
            monkeypatch.setattr(module, "FEW", 1)
        monkeypatch.setattr(plan, "LONG", 1)
    P = grid(P_world, [1, 1, job.size, 1])
    layer = dnn.DistributedScaledDotProductAttention(P, is_causal=True, method=method)
    own = [block(scores((2, 6, 7, 3), seed), P, (0, 1, 2, 3)).requires_grad_() for seed in (1, 2, 3)]
    counts = []
    for _ in range(3):
        before = _core.votes()
        result = layer(*own)
        between = _core.votes()
        torch.autograd.grad(result, own, torch.ones_like(result))
        counts.append((between - before, _core.votes() - between))
    assert counts[1:] == [(1, 1)] * 2, counts


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("method", ["heads", "ring"])
@pytest.mark.parametrize("features", [(4, 4), (4, 3), (3, 4)], ids=str)
def test_strides(P_world, method, features):
    """Features that do not lie side by side in memory: the kernel does not look at their stride."""
    P = grid(P_world, [1, 1, job.size, 1])
    layer, (e, f) = dnn.DistributedScaledDotProductAttention(P, method=method), features
    wholes = [values((2, 3, 4, n), seed=seed) - 1.5 for seed, n in enumerate((e, e, f))]
    results = []
    for of in (everyday, transposed, every_other, channels_last):
        own = [of(block(x, P, (0, 1, 2, 3))).requires_grad_() for x in wholes]
        y = layer(*own)
        results.append([y, *torch.autograd.grad(y, own, of(torch.ones_like(y).cumsum(-1)))])
    for result in results[1:]:
        assert all(torch.allclose(a, b, rtol=0, atol=1e-14) for a, b in zip(result, results[0], strict=True))
    repeated = [expanded(block(x, P, (0, 1, 2, 3))) for x in wholes]
    assert torch.allclose(layer(*repeated), layer(*[x.contiguous() for x in repeated]), rtol=0, atol=1e-14)
