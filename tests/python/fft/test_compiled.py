"""Transforms in compiled programs, from the first call on: the compiler has them construct their layers."""

import pytest
import torch

import distdl
from support.blocks import block_of, grid
from support.sequential import close
from support.tensors import values
from support.versions import TORCH

pytestmark = [
    pytest.mark.ranks(1, 2, 3),
    # Of torch's own modules, which it imports when it compiles.
    pytest.mark.filterwarnings("ignore:`torch.jit.script", "ignore:.*:DeprecationWarning:torch"),
]


def there_and_back(x, P_x):
    y = distdl.fft.fftshift(distdl.fft.rfft2(2 * x, P_x), P_x, dim=0)
    return distdl.fft.irfft2(y * y, P_x, s=(7, 6))


def by_a_pencil(x, P_x):
    y, P_y = distdl.fft.rfft2(2 * x, P_x, out="pencil")
    return distdl.fft.irfft2(y * y, P_y, s=(7, 6), out=P_x)


@pytest.mark.parametrize("call", [there_and_back, by_a_pencil])
def test_one_graph(P_world, call):
    """Values and gradients equal those of calls, up to rounding: compiled, tensors may lie otherwise in memory."""
    torch.compiler.reset()
    P_x = grid(P_world, [min(P_world.size, 2), 1])  # of three ranks, the last is outside
    x = block_of(values((7, 6)), P_x)

    def trained(function):
        leaf = x.clone().requires_grad_()
        y = function(leaf, P_x)
        if not P_x.active:
            return [y]
        y.square().sum().backward()
        return [y.detach(), leaf.grad]

    compiled_call = torch.compile(call, fullgraph=True, backend="aot_eager")
    if TORCH < (2, 12):
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"distdl\.fft in a compiled program needs torch 2\.12"):
            compiled_call(x, P_x)
        return
    compiled = trained(compiled_call)
    assert all(close(a, b, 1e-14) for a, b in zip(compiled, trained(call), strict=True))
    torch.compiler.reset()
