"""Spectral convolutions with the weights of the package neuraloperator have its results and gradients.

tests/run.sh installs the package without its dependencies, of which the layer needs few. It is in float32.
Of an odd number of rows its second shift does not undo the first one, so that all dimensions but the last one are even.
"""

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv

import distdl.nn as dnn
from distdl.nn.fourier import sequential
from support.blocks import assemble, block_of, grid
from support.ranks import job

pytestmark = pytest.mark.ranks(1, 2, 4)
ROUNDINGS = 100  # in units of the last place of the largest value


def is_close(ours, theirs):
    return float((ours - theirs).abs().max()) <= ROUNDINGS * torch.finfo(theirs.dtype).eps * float(theirs.abs().max())


def twin_of(layer, modes):
    """The layer in one process, with the same weights."""
    twin = getattr(sequential, f"SpectralConv{len(modes)}d")(
        layer.in_channels, layer.out_channels, modes, bias=layer.bias is not None, norm=layer.fft_norm
    )
    with torch.no_grad():
        twin.weight.copy_(torch.view_as_real(layer.weight.to_tensor()))
        if layer.bias is not None:
            twin.bias.copy_(layer.bias)
    return twin


@pytest.mark.parametrize("split", ["first", "last", "both"])
@pytest.mark.parametrize(
    ("space", "modes", "options"),
    [
        ((17,), (9,), {}),
        ((16,), (16,), {"fft_norm": "ortho"}),
        ((12, 16), (6, 8), {}),
        ((12, 15), (5, 7), {"bias": False}),
        ((8, 8), (8, 8), {"fft_norm": "backward"}),
        ((6, 8, 10), (3, 4, 6), {}),
        ((6, 4, 4, 6), (2, 3, 4, 5), {}),
    ],
)
def test_the_package_has_the_same_layer(P_world, space, modes, options, split):
    dims = len(space)
    if split == "both" and (dims == 1 or job.size < 4):
        return
    shape = [1] * (dims + 2)
    for d, p in {"first": [(2, job.size)], "last": [(-1, job.size)], "both": [(2, 2), (-1, job.size // 2)]}[split]:
        shape[d] = p
    torch.manual_seed(0)
    theirs = SpectralConv(4, 6, modes, **options)
    twin = twin_of(theirs, modes)
    P_x = grid(P_world, shape)
    ours = getattr(dnn, f"SpectralConv{dims}d").from_sequential(twin, P_x)

    x = torch.randn(2, 4, *space, requires_grad=True)
    result = theirs(x)
    expected = result.detach()
    cotangent = torch.randn(expected.shape)
    names, parameters_of_theirs = zip(*theirs.named_parameters(), strict=True)
    assert names == (("bias", "weight.tensor") if theirs.bias is not None else ("weight.tensor",))
    expected_x, *expected_parameters = torch.autograd.grad(result, [x, *parameters_of_theirs], cotangent)

    block = block_of(x.detach(), P_x).requires_grad_()
    y = ours(block)
    y.backward(block_of(cotangent, P_x))
    assert is_close(assemble(y.detach(), P_x, expected.shape), expected)
    assert is_close(assemble(block.grad, P_x, x.shape), expected_x)
    blocks_of_weight, workers_of_bias = [1, 1, *shape[2:], 1], [1] * (dims + 1)
    places = [workers_of_bias, blocks_of_weight] if ours.bias is not None else [blocks_of_weight]
    parameters = [ours.bias, ours.weight] if ours.bias is not None else [ours.weight]
    for parameter, workers, whole in zip(parameters, places, expected_parameters, strict=True):
        whole = torch.view_as_real(whole) if whole.is_complex() else whole
        assert is_close(assemble(parameter.grad, grid(P_world, workers), whole.shape), whole)
