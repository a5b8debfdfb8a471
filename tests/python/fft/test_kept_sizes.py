"""Transforms that keep the shape of a real input: the derivatives are torch's, in every way to ask for them."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from distdl.nn.kernels.kept_sizes import keeping_sizes

pytestmark = pytest.mark.ranks(1)
CALLS = {
    "fft": lambda fft, x: fft.fft(x, 7, 1),
    "rfft": lambda fft, x: fft.rfft(x, 4),
    "rfft2": lambda fft, x: fft.rfft2(x, norm="ortho"),
    "rfftn": lambda fft, x: fft.rfftn(x, (3, 8), (1, 0)),
    "ihfft": lambda fft, x: fft.ihfft(x),
    "ihfftn": lambda fft, x: fft.ihfftn(x),
    "irfft": lambda fft, x: fft.irfft(torch.complex(x, x.sin()), 6),
}


class Keeping:
    """torch.fft with functions that keep sizes."""

    def __getattr__(self, name):
        return keeping_sizes(getattr(torch.fft, name))


def saved_elements(call):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()), lambda kept: kept):
        result = call()
    assert result.grad_fn is not None
    return sum(saved)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name):
    x = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    ours, of_torch = (lambda x, fft=fft: CALLS[name](fft, x) for fft in (Keeping(), torch.fft))
    assert torch.autograd.gradcheck(ours, x)
    assert torch.autograd.gradgradcheck(ours, x)

    def gradient(call, x):
        return torch.autograd.grad(call(x).abs().sum(), x)[0]

    assert torch.equal(gradient(ours, x), gradient(of_torch, x))
    assert torch.equal(gradient(lambda x: checkpoint(ours, x, use_reentrant=False), x), gradient(of_torch, x))
    with torch.autograd.graph.save_on_cpu():
        assert torch.equal(gradient(ours, x), gradient(of_torch, x))
    for transform in (lambda call: torch.func.grad(lambda x: call(x).abs().sum()), torch.func.vmap):
        assert torch.equal(transform(ours)(x.detach()), transform(of_torch)(x.detach()))


def test_nothing_of_a_real_input_is_kept():
    x = torch.randn(2, 4, 6, requires_grad=True)
    assert saved_elements(lambda: torch.fft.rfft(x)) == x.numel()
    assert saved_elements(lambda: keeping_sizes(torch.fft.rfft)(x)) == 0
