"""Moments of channels and normalization by them, in the C++ core."""

import math

import pytest
import torch

from distdl import _core
from support.tensors import same_bits


def groups_of_one_worker(x, channels=(1, 2)):
    """Each channel of a block is a group of its own."""
    n = math.prod(x.shape[slice(*channels)])
    count, own = x.numel() // max(1, n), torch.arange(n)
    return _core.MomentGroups(channels, [n], own, torch.full([n], float(count), dtype=torch.double), own, n, count)


SHAPES = [
    (1, 3, 10_000),
    (2, 2, 4099),
    (3, 1, 17),
    (2, 3, 1),
    (0, 2, 5),
    (2, 0, 5),
    (9000, 3),
    (70, 300),
    (2, 3, 40, 60),
]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moments_of_channels(dtype, shape):
    """Of more elements than are summed at a time, beside a large mean, a first element that is far off, constants."""
    torch.manual_seed(0)
    mean = 1e5 if dtype.itemsize > 2 else 100.0
    x = (torch.randn(shape, dtype=torch.float64) + mean).to(dtype)
    others = [x, torch.full_like(x, mean)]
    if x.numel():
        others.append(x.clone())
        others[-1][0, 0].view(-1)[0] = -100 * mean if dtype.itemsize > 2 else -mean
    if len(shape) == 4:
        others += [x.to(memory_format=torch.channels_last), x.mT.contiguous().mT]
    dims = [d for d in range(len(shape)) if d != 1]
    for tensor in others:
        _, message = _core.block_moments(tensor, groups_of_one_worker(tensor))
        means, squares = message.view(2, -1)
        exact = tensor.double()
        n = max(1, exact[:, :1].numel())
        expected = exact.sum(dims) / n
        torch.testing.assert_close(means, expected, rtol=1e-13, atol=0)
        deviations = (exact - expected.view(1, -1, *[1] * (len(shape) - 2))).square().sum(dims)
        torch.testing.assert_close(squares, deviations, rtol=1e-7, atol=1e-13 * n)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if math.prod(shape)], ids=str)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_normalized_block(dtype, shape, order):
    """Numbers and gradients by the kernels, beside torch's in double precision; the memory order and dtype stay."""
    if order is torch.channels_last and len(shape) != 4:
        return
    torch.manual_seed(0)
    x = (torch.randn(shape, dtype=torch.float64) + 3).to(dtype).contiguous(memory_format=order)
    slopes = torch.randn(shape, dtype=torch.float64).to(dtype)
    weight, bias = (torch.randn(shape[1], dtype=torch.float64).to(dtype) for _ in range(2))
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    groups = groups_of_one_worker(x)
    same, message = _core.block_moments(x, groups)
    y, *_ = _core.normalize_block(same, message, groups, weight, bias, 1e-3, math.inf, dtype)
    gradients = torch.autograd.grad(y, leaves, slopes, retain_graph=True)
    doubles = [tensor.detach().double().requires_grad_() for tensor in leaves]
    expected = torch.nn.functional.batch_norm(doubles[0], None, None, *doubles[1:], True, eps=1e-3)
    exact = torch.autograd.grad(expected, doubles, slopes.double())
    assert y.dtype == dtype
    assert y.stride() == x.stride()
    assert gradients[0].stride() == x.stride()
    recorded = torch.autograd.grad(y, leaves, slopes, create_graph=True)
    eps = max(torch.finfo(dtype).eps, 1e-14)  # sums are in double precision
    for actual, number in ((y, expected), *zip(gradients, exact, strict=True), *zip(recorded, exact, strict=True)):
        assert actual.dtype == dtype
        scale = float(number.detach().abs().max()) + 1
        torch.testing.assert_close(actual.double(), number, rtol=4 * eps, atol=8 * eps * scale)


@pytest.mark.ranks(1)
def test_numbers_that_are_not_in_memory():
    """A pending negation of the input, and derivatives that are torch's zeros without memory."""
    x = torch.complex(torch.randn(4, 3), torch.randn(4, 3)).conj().imag
    assert x.is_neg()
    groups = groups_of_one_worker(x)
    assert same_bits(_core.block_moments(x, groups)[1], _core.block_moments(x.clone(), groups)[1])
    leaf = torch.randn(4, 3, requires_grad=True)
    same, messages = _core.block_moments(leaf * 1, groups)
    y, *_ = _core.normalize_block(same, messages, groups, None, None, 1e-3, math.inf, x.dtype)
    zeros = torch._efficientzerotensor(y.shape)
    assert not torch.autograd.grad(y, leaf, zeros)[0].any()
