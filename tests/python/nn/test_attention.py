"""Attention in blocks beside torch's on the whole."""

import copy
import functools

import pytest
import torch
from hypothesis import given, strategies
from torch.utils.checkpoint import checkpoint

import distdl
import distdl.functional as df
import distdl.nn as dnn
from distdl import _core
from distdl.nn.attention.methods import choice as plan
from distdl.nn.attention.methods import heads as by_heads
from distdl.nn.base.random_numbers import draw_key, random_mask
from support.blocks import grid, grid_shapes
from support.families import Example
from support.families.attention import scores
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


def boolean(*shape):
    """A mask with a row that looks at no key."""
    mask = scores(shape, 5) > -0.3
    mask.reshape(-1, shape[-1])[shape[-2] // 2] = False
    return mask


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


@pytest.mark.ranks(2)
def test_transformer_drops_the_same_on_any_partition(P_world):
    """All masks of a layer, in its attention and behind it."""
    src, results = scores((2, 4, 6), 1), []
    for shape in ([1, 1, 1], [2, 1, 1], [1, 2, 1]):
        P = grid(P_world, shape)
        torch.manual_seed(7)
        layer = dnn.DistributedTransformerEncoderLayer(P, 6, 2, 5, 0.3, batch_first=True, dtype=torch.float64)
        torch.manual_seed(8)
        results.append(joined_blocks(layer(block(src, P, (0, 1, None))), P, src.shape, (0, 1, None)))
    assert torch.allclose(results[0], results[1], rtol=0, atol=1e-13)
    assert torch.allclose(results[0], results[2], rtol=0, atol=1e-13)
    assert not torch.equal(results[0], src)


FIRST_VALUES = {
    "MultiheadAttention": {"embed_dim": 4, "num_heads": 2, "add_bias_kv": True},
    "MultiheadAttention, other features": {"embed_dim": 4, "num_heads": 2, "kdim": 3, "vdim": 5},
    "TransformerEncoderLayer": {"d_model": 4, "nhead": 2, "dim_feedforward": 3},
    "TransformerDecoderLayer": {"d_model": 4, "nhead": 2, "dim_feedforward": 3, "bias": False},
    "Transformer": {
        "d_model": 4, "nhead": 2, "dim_feedforward": 3, "num_encoder_layers": 2, "num_decoder_layers": 1,
        "batch_first": True,
    },
}  # fmt: skip


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", FIRST_VALUES)
def test_first_values(P_world, name):
    """The same seed gives torch.nn's parameters, and leaves the generator where torch.nn leaves it."""
    kind, options = name.partition(",")[0], FIRST_VALUES[name]
    torch.manual_seed(3)
    layer = getattr(dnn, f"Distributed{kind}")(grid(P_world, [1, job.size, 1]), **options)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    twin = getattr(torch.nn, kind)(**options)
    assert torch.equal(drawn, torch.rand(3))
    state = distdl.sequential_state_dict(layer)
    if state:
        assert list(state) == list(twin.state_dict())
        for parameter, value in twin.state_dict().items():
            assert torch.equal(state[parameter], value), parameter


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", ["heads", "ring"])
def test_merging_keeps_single_precision(P_world, method):
    """Large scores, and queries for which few keys count: the error is as large as the scores'."""
    q, k, v = (8 * scores((1, 4, 24, 8), seed) for seed in (1, 2, 3))
    mask = torch.ones(24, 24, dtype=torch.bool).tril()
    exact = Attention()(q, k, v, mask)
    P = grid(P_world, [1, 1, job.size, 1])
    layer = dnn.DistributedScaledDotProductAttention(P, is_causal=True, method=method)
    result = joined_blocks(layer(*(block(x.float(), P, (0, 1, 2, 3)) for x in (q, k, v))), P, q.shape, (0, 1, 2, 3))
    # A rounded score s changes its weight by eps * |s|, and so does the rounded logarithm of the sum.
    allowed = 2 * torch.finfo(torch.float32).eps * (q @ k.mT / 8**0.5).abs().max() * v.abs().max()
    assert (result - exact).abs().max() <= allowed


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


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("method", ["heads", "ring"])
@pytest.mark.parametrize("changed", ["mode", "p"])
def test_layers_within_in_another_mode(P_world, method, changed):
    """A stack agrees on what the layers within drop; the next call with equal layers works."""
    P = grid(P_world, [1, job.size, 1])
    layer = dnn.DistributedTransformerEncoderLayer(P, 4, 2, 3, 0.3, batch_first=True, method=method)
    stack = dnn.DistributedTransformerEncoder(P, layer, 2)
    x = block(scores((2, 6, 4), 1).float(), P, (0, 1, None))
    for used in (stack, layer):
        used(x)
        first = next(iter(getattr(used, "layers", [used])))
        if job.rank == 0:
            first.train(changed != "mode")
            first.dropout = 1.0 if changed == "p" else 0.3
        raises_everywhere(ValueError, "differ", lambda used=used: used(x))
        first.train()
        first.dropout = 0.3
        assert used(x).shape == x.shape


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


def stacks():
    """A stack and a transformer whose layers have options of their own, in training."""
    torch.manual_seed(2)
    options = {"d_model": 4, "nhead": 2, "dim_feedforward": 3, "batch_first": True, "dtype": torch.float64}
    layer = torch.nn.TransformerEncoderLayer(dropout=0.0, **options)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    transformer = torch.nn.Transformer(dropout=0.0, num_encoder_layers=2, num_decoder_layers=2, **options)
    for layers in (encoder.layers, transformer.encoder.layers, transformer.decoder.layers):
        layers[1].norm1.eps = layers[1].norm2.eps = 0.3
        layers[0].norm_first, layers[1].activation = True, torch.nn.functional.gelu
    transformer.decoder.layers[1].norm3.eps = 0.3
    transformer.encoder.norm.eps = 0.7
    return encoder, transformer


@pytest.mark.ranks(2)
def test_layers_with_options_of_their_own(P_world):
    """Each layer of torch.nn's stacks may have been changed."""
    P, cut = grid(P_world, [1, job.size, 1]), (0, 1, None)
    encoder, transformer = stacks()
    x, y = scores((2, 5, 4), 1), scores((2, 6, 4), 2)
    result = dnn.DistributedTransformerEncoder.from_sequential(encoder, P)(block(x, P, cut))
    assert torch.allclose(joined_blocks(result, P, x.shape, cut), encoder(x), rtol=0, atol=1e-13)
    for options in ({}, {"method": "ring"}):
        layer = dnn.DistributedTransformer.from_sequential(transformer, P, **options)
        result = layer(block(x, P, cut), block(y, P, cut))
        assert torch.allclose(joined_blocks(result, P, y.shape, cut), transformer(x, y), rtol=0, atol=1e-13)
    transformer.decoder.layers[1].eval()
    encoder.layers[0].eval()
    for kind, twin in ((dnn.DistributedTransformer, transformer), (dnn.DistributedTransformerEncoder, encoder)):
        modes = dict(twin.named_modules())
        for name, module in kind.from_sequential(twin, P).named_modules():
            assert module.training == modes[name].training or not isinstance(module, dnn.Layer), name


CHANGES = {
    "norm2.eps=0.5": lambda layer: setattr(layer.norm2, "eps", 0.5),
    "self_attn.dropout=0.7": lambda layer: setattr(layer.self_attn, "dropout", 0.7),
    "dropout1.p=0.2": lambda layer: setattr(layer.dropout1, "p", 0.2),
    "dropout2.training=False": lambda layer: layer.dropout2.eval(),
    "random numbers": lambda layer: setattr(layer, "activation", torch.nn.Dropout(0.1)),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("text", CHANGES)
def test_what_no_layer_expresses(P_world, text):
    """The message names what was changed in the layer of torch.nn, in it and in a stack of it."""
    P = grid(P_world, [1, job.size, 1])
    twin = torch.nn.Transformer(4, 2, 2, 2, 3, batch_first=True)
    for stack in (twin.encoder, twin.decoder):
        CHANGES[text](stack.layers[1])
    for module in (twin, twin.encoder, twin.decoder, twin.encoder.layers[1], twin.decoder.layers[1]):
        kind = getattr(dnn, f"Distributed{type(module).__name__}")
        raises_everywhere(TypeError, text, lambda kind=kind, module=module: kind.from_sequential(module, P))


@pytest.mark.ranks(2)
def test_copies_and_checkpoints(P_world):
    """A stack and its copy give the same; activation checkpointing drops the same elements again."""
    P = grid(P_world, [1, job.size, 1])
    x = block(scores((2, 5, 4), 1), P, (0, 1, None)).requires_grad_()
    torch.manual_seed(1)
    layer = dnn.DistributedTransformerEncoderLayer(P, 4, 2, 5, 0.3, batch_first=True, dtype=torch.float64)
    stack = dnn.DistributedTransformerEncoder(P, layer, 2).eval()
    first = stack(x)
    assert torch.equal(copy.deepcopy(stack)(x), first)
    assert torch.equal(stack(x), first)
    gradients = []
    for run in (layer, functools.partial(checkpoint, layer, use_reentrant=False)):
        torch.manual_seed(4)
        gradients.append(torch.autograd.grad(run(x).square().sum(), x)[0])
    assert torch.allclose(*gradients, rtol=0, atol=1e-13)


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


@pytest.mark.ranks(2)
@pytest.mark.parametrize("method", ["heads", "ring"])
def test_checkpoints_and_autocast(P_world, method):
    """Both kinds of activation checkpointing, around a layer in autocast, give what the layer gives."""
    P = grid(P_world, [1, job.size, 1])
    torch.manual_seed(1)
    layer = dnn.DistributedTransformerEncoderLayer(P, 4, 2, 5, 0.3, batch_first=True, method=method)
    x = block(scores((2, 5, 4), 1).float(), P, (0, 1, None)).requires_grad_()
    for p, is_causal in ((0.3, False), (0.0, True)):
        layer.dropout = p
        results = []
        for reentrant in (None, True, False):
            torch.manual_seed(4)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                call = functools.partial(layer, is_causal=is_causal)
                y = call(x) if reentrant is None else checkpoint(call, x, use_reentrant=reentrant)
            assert y.dtype == torch.float32  # of the last norm
            results.append([y, *torch.autograd.grad(y.square().sum(), (x,))] if reentrant is not True else [y])
            if reentrant is True:
                y.square().sum().backward()
                results[-1].append(x.grad)
                x.grad = None
        for result in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))
