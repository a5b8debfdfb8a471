"""Layers of transformers: their first values, options and modes, the elements that they drop, and copies of them."""

import copy
import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.families.attention import scores
from support.ranks import job, raises_everywhere
from support.sequential import block, joined_blocks

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
