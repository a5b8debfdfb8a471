"""Arguments of the transforms that torch takes, too."""

import numpy as np
import pytest
import torch

import distdl
from distdl.nn.fourier.shift import SHIFTS
from support.blocks import block_of, grid
from support.ranks import raises_everywhere
from support.tensors import same_bits

pytestmark = pytest.mark.ranks(1, 2)


@pytest.mark.parametrize("options", [{"n": np.int64(5)}, {"n": torch.tensor(4)}, {"dim": np.int64(0)}])
def test_integers_of_other_types(P_world, options):
    """NumPy integers and tensors of one integer, as n and as dim."""
    P_x = grid(P_world, [P_world.size, 1])
    x = torch.arange(24, dtype=torch.float64).reshape(4, 6)
    expected = torch.fft.fft(x, **options)
    y = distdl.fft.fft(block_of(x, P_x), P_x, **options)
    assert torch.allclose(y, block_of(expected, P_x))
    if "dim" in options:
        y = distdl.fft.fftshift(block_of(x, P_x), P_x, **options)
        assert torch.equal(y, block_of(torch.fft.fftshift(x, 0), P_x))


@pytest.mark.parametrize("options", [{"n": True}, {"dim": False}])
def test_booleans_are_refused(P_world, options):
    """As torch refuses them."""
    P_x = grid(P_world, [P_world.size, 1])
    with pytest.raises(TypeError, match="not bool"):
        distdl.fft.fft(torch.ones(2, 3), P_x, **options)


@pytest.mark.parametrize("function", ["fftn", "rfftn", "irfftn", "hfftn"])
def test_minus_one_is_the_size_of_the_input(P_world, function):
    P_x = grid(P_world, [P_world.size, 1])
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for sizes in ((5, -1), (-1, 5), (-1, -1)):
        expected = getattr(torch.fft, function)(x, sizes)
        y = getattr(distdl.fft, function)(block_of(x, P_x), P_x, sizes)
        assert torch.allclose(y, block_of(expected, P_x))


@pytest.mark.parametrize("size", [2**40, 2**62])
@pytest.mark.parametrize("dim", [0, 1])
def test_sizes_that_no_worker_has_the_memory_for(P_world, size, dim):
    """Refused at once on all ranks, as torch refuses them, though one worker alone would have the long dimension."""
    P_x, x = grid(P_world, [P_world.size, 1]), torch.ones(2, 3)
    with pytest.raises(RuntimeError):
        torch.fft.fft(x, size, dim)
    raises_everywhere(
        RuntimeError, "fft: a block of the result has the shape", lambda: distdl.fft.fft(x, P_x, size, dim)
    )
    assert torch.equal(distdl.fft.ifft(distdl.fft.fft(x, P_x, dim=dim), P_x, dim=dim).real, x)


def test_gradients_of_shifts_keep_the_signs_of_zeros(P_world):
    """They are moved, as torch moves them, and not added up."""
    P_x = grid(P_world, [P_world.size])
    block = block_of(torch.arange(6.0), P_x).requires_grad_()
    distdl.fft.fftshift(block, P_x).backward(torch.full_like(block, -0.0))
    assert same_bits(block.grad, torch.full_like(block, -0.0))


@pytest.mark.parametrize("layer", SHIFTS.values(), ids=SHIFTS)
def test_a_dimension_that_is_not_there_is_refused_by_the_constructor(P_world, layer):
    raises_everywhere(IndexError, "Dimension out of range", lambda: layer(grid(P_world, [P_world.size, 1]), dim=2))
