"""The local 3-d convolution beside torch's: by another kernel where torch's is slow."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.profiler import ProfilerActivity, profile

import distdl.nn as dnn
from distdl.nn.kernels import convolution as conv_kernels
from distdl.nn.kernels.convolution import conv3d
from support.blocks import grid
from support.ranks import job

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

# Of the input without batch, and of the kernel; whole numbers, of which all sums are exact in any order.
CASES = {
    "a block of a larger tensor": ((32, 16, 32, 32), (32, 32, 3, 3, 3), {"padding": 1}),
    "a slab": ((32, 1, 32, 32), (32, 32, 3, 3, 3), {"padding": (1, 1, 1)}),
    "another number of channels": ((3, 20, 20, 20), (16, 3, 3, 3, 3), {"padding": 1}),
    "one channel": ((1, 32, 32, 32), (8, 1, 3, 3, 3), {}),
    "strided": ((16, 16, 16, 17), (16, 16, 3, 3, 3), {"stride": (1, 2, 2), "padding": (0, 1, 1)}),
    "dilated": ((16, 10, 10, 9), (16, 16, 3, 3, 3), {"dilation": (1, 2, 3), "padding": (2, 1, 3)}),
    "a flat kernel": ((16, 20, 20, 20), (16, 16, 1, 3, 3), {}),
    "a long one": ((16, 20, 20, 20), (16, 16, 7, 1, 2), {"padding": (3, 0, 1)}),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def whole_numbers(shape, seed):
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def made(case, bias=True, batch=True):
    """Input, weight and bias, and the options in the order of the arguments."""
    x, w, options = case
    triples = {"stride": 1, "padding": 0, "dilation": 1} | options
    arguments = [[value] * 3 if isinstance(value, int) else list(value) for value in triples.values()]
    tensors = [whole_numbers((1, *x) if batch else x, 0), whole_numbers(w, 1)]
    return [*tensors, whole_numbers(w[:1], 2) if bias else None], [*arguments, 1]


def kernels(function):
    """The names of what torch runs."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        function()
    return {event.key for event in profiler.key_averages()}


def is_slow(names):
    return any("slow_conv" in name for name in names)


def gradients(convolve, tensors, options, create_graph=False):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors if tensor is not None]
    y = convolve(*leaves, *[None] * (3 - len(leaves)), *options)
    cotangent = whole_numbers(y.shape, 3).requires_grad_()
    first = torch.autograd.grad(y, leaves, cotangent, create_graph=create_graph)
    if not create_graph:
        return [y, *first]
    directions = [whole_numbers(gradient.shape, 4 + i) for i, gradient in enumerate(first)]
    return [y, *first, *torch.autograd.grad(first, [*leaves[:2], cotangent], directions)]


def assert_equal(got, expected):
    for result, other in zip(got, expected, strict=True):
        assert torch.equal(result, other)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("batch", [True, False], ids=["batch", "no batch"])
@every_case
def test_values_and_gradients(case, batch, bias):
    tensors, options = made(case, bias, batch)
    assert_equal(gradients(conv3d, tensors, options), gradients(F.conv3d, tensors, options))


@pytest.mark.parametrize("case", [CASES[name] for name in ("a slab", "strided", "dilated")])
def test_second_gradients(case):
    tensors, options = made(case)
    assert_equal(gradients(conv3d, tensors, options, True), gradients(F.conv3d, tensors, options, True))


@every_case
def test_slow_kernels_are_not_met(case):
    """In neither direction, where torch meets them."""
    tensors, options = made(case)
    assert is_slow(kernels(lambda: gradients(F.conv3d, tensors, options)))
    names = kernels(lambda: gradients(conv3d, tensors, options))
    assert "aten::mkldnn_convolution" in names
    assert not is_slow(names)


def test_the_layer_does_not_meet_them(P_world):
    """On blocks, and on thin halos beside them."""
    layer = dnn.DistributedConv3d(grid(P_world, [1, 1, job.size, 1, 1]), 32, 32, 3, padding=1)
    x = torch.ones(1, 32, 16, 32, 32, requires_grad=True)
    layer(x)  # asks torch what it thinks of the dtype, with a single element
    assert not is_slow(kernels(lambda: layer(x).sum().backward()))


def test_rounding():
    """Each output is a sum of n products in another order, which is n roundings at most on either side."""
    (x, w, b), options = made(CASES["a block of a larger tensor"])
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(tensor.shape, generator=generator) for tensor in (x, w))
    terms = F.conv3d(x.abs(), w.abs(), b.abs(), *options)
    n = w[0].numel() + 1
    error = (conv3d(x, w, b, *options) - F.conv3d(x, w, b, *options)).abs()
    assert (error <= 2 * n * torch.finfo(x.dtype).eps * terms).all()


@pytest.mark.parametrize(
    "asks", [(True, False, False), (False, True, False), (False, False, True), (True, False, True)]
)
def test_gradients_of_some(asks):
    tensors, options = made(CASES["a slab"])
    computed = []
    for convolve in (conv3d, F.conv3d):
        leaves = [tensor.clone().requires_grad_(asked) for tensor, asked in zip(tensors, asks, strict=True)]
        convolve(*leaves, *options).square().sum().backward()
        computed.append([leaf.grad for leaf in leaves])
        assert [gradient is not None for gradient in computed[-1]] == list(asks)
    for gradient, other in zip(*computed, strict=True):
        assert gradient is None or torch.equal(gradient, other)


@pytest.mark.parametrize("dual", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)])
def test_forward_mode(dual):
    tensors, options = made(CASES["a slab"])
    computed = []
    with forward_ad.dual_level():
        for convolve in (conv3d, F.conv3d):
            arguments = [
                forward_ad.make_dual(tensor, whole_numbers(tensor.shape, 7 + i)) if has else tensor
                for i, (tensor, has) in enumerate(zip(tensors, dual, strict=True))
            ]
            computed.append(forward_ad.unpack_dual(convolve(*arguments, *options)))
    assert_equal(*computed)


def test_forward_over_reverse():
    tensors, options = made(CASES["a slab"])
    computed = []
    for convolve in (conv3d, F.conv3d):
        with forward_ad.dual_level():
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            duals = [forward_ad.make_dual(leaf, whole_numbers(leaf.shape, 7)) for leaf in leaves]
            y = convolve(*duals, *options)
            first = torch.autograd.grad(y.square().sum(), leaves)
            computed.append([part for gradient in first for part in forward_ad.unpack_dual(gradient)])
    assert_equal(*computed)


OTHERS = {
    "double precision": ((1, 32, 8, 16, 16), (32, 32, 3, 3, 3), torch.float64, 1),
    "complex": ((1, 32, 8, 16, 16), (32, 32, 3, 3, 3), torch.complex64, 1),
    "half precision": ((1, 32, 8, 16, 16), (32, 32, 3, 3, 3), torch.bfloat16, 1),
    "a large tensor": ((1, 32, 32, 32, 8), (32, 32, 3, 3, 3), torch.float32, 1),
    "a tiny one": ((1, 4, 4, 4, 4), (4, 4, 3, 3, 3), torch.float32, 1),
    "two samples": ((2, 32, 8, 16, 16), (32, 32, 3, 3, 3), torch.float32, 1),
    "groups": ((1, 32, 8, 16, 16), (32, 16, 3, 3, 3), torch.float32, 2),
    "products of matrices": ((1, 32, 8, 16, 16), (64, 32, 1, 1, 1), torch.float32, 1),
    "products of more": ((1, 32, 8, 16, 16), (64, 32, 3, 1, 1), torch.float32, 1),
}


@pytest.mark.parametrize(("x", "w", "dtype", "groups"), OTHERS.values(), ids=OTHERS)
def test_as_torch_where_torch_is_fast(x, w, dtype, groups):
    """The same bits, by the same kernels."""
    arguments = torch.randn(x).to(dtype), torch.randn(w).to(dtype), None, [1] * 3, [1] * 3, [1] * 3, groups
    assert torch.equal(conv3d(*arguments), F.conv3d(*arguments))
    assert kernels(lambda: conv3d(*arguments)) == kernels(lambda: F.conv3d(*arguments))


@pytest.mark.turns(3)
def test_autocast():
    (x, w, b), options = made(CASES["a block of a larger tensor"])
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = conv3d(x, w, b, *options), F.conv3d(x, w, b, *options)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_without_onednn():
    (x, w, b), options = made(CASES["a slab"])
    with torch.backends.mkldnn.flags(enabled=False):
        assert is_slow(kernels(lambda: conv3d(x, w, b, *options)))


MISTAKES = {
    "channels": ((1, 31, 8, 16, 16), (32, 32, 3, 3, 3), 32, torch.float32),
    "dimensions": ((1, 1, 32, 8, 16, 16), (32, 32, 3, 3, 3), 32, torch.float32),
    "kernel": ((1, 32, 8, 16, 16), (32, 32, 3, 3), 32, torch.float32),
    "kernel larger than the input": ((1, 32, 8, 16, 1), (32, 32, 3, 3, 4), 32, torch.float32),
    "bias": ((1, 32, 8, 16, 16), (32, 32, 3, 3, 3), 31, torch.float32),
    "dtype": ((1, 32, 8, 16, 16), (32, 32, 3, 3, 3), 32, torch.float64),
}


@pytest.mark.parametrize(("x", "w", "b", "dtype"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(x, w, b, dtype):
    arguments = torch.ones(x), torch.ones(w, dtype=dtype), torch.ones(b), [1] * 3, [0] * 3, [1] * 3, 1
    with pytest.raises(RuntimeError) as expected:
        F.conv3d(*arguments)
    with pytest.raises(RuntimeError) as raised:
        conv3d(*arguments)
    assert str(raised.value) == str(expected.value)


def test_compiled():
    (x, w, b), options = made(CASES["a slab"])
    x.requires_grad_()
    compiled = torch.compile(lambda x: conv3d(x, w, b, *options), fullgraph=True, backend="aot_eager")
    y = compiled(x)
    assert torch.equal(y, F.conv3d(x, w, b, *options))
    assert_equal(torch.autograd.grad(y.sum(), x), torch.autograd.grad(conv3d(x, w, b, *options).sum(), x))


def test_torch_chooses_by_this_many_elements():
    """The module's statements about torch."""
    w, options = torch.ones(4, 4, 3, 3, 3), ([1] * 3, [1] * 3, [1] * 3, 1)
    rows = conv_kernels.TORCH_TAKES_ONEDNN // (4 * 32)
    at, above = (torch.ones(1, 4, n, 32, 3) for n in (rows, rows + 1))
    assert 4 * 32 * rows == conv_kernels.TORCH_TAKES_ONEDNN
    assert is_slow(kernels(lambda: F.conv3d(at, w, None, *options)))
    assert not is_slow(kernels(lambda: F.conv3d(above, w, None, *options)))
