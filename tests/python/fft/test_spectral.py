"""What spectral convolutions refuse, also where a worker has no frequencies and nothing to multiply."""

import pytest
import torch

import distdl.nn as dnn
from distdl.nn.fourier import sequential
from support.blocks import grid
from support.ranks import job, raises_everywhere


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_dtypes_are_refused_on_all_ranks(P_world, dtype):
    """Two frequencies: of three workers one has none, and would wait for the others."""
    layer = dnn.SpectralConv1d(grid(P_world, [1, 1, P_world.size]), 2, 2, 3).to(dtype)
    x = torch.ones(1, 2, 4, dtype=dtype)
    raises_everywhere(RuntimeError, "single and double precision", lambda: layer(x))
    with torch.autocast("cpu", torch.bfloat16):
        raises_everywhere(RuntimeError, "single and double precision", lambda: layer(x))


@pytest.mark.ranks(2)
def test_channels_in_blocks_that_are_not_balanced(P_world):
    layer = dnn.SpectralConv1d(grid(P_world, [1, 2, 1]), 4, 4, 3)
    x = torch.ones(1, 1 if job.rank == 0 else 3, 8)
    raises_everywhere(ValueError, "in_channels", lambda: layer(x))


@pytest.mark.ranks(1)
def test_first_values():
    """Complex numbers whose variance is that of Glorot and Bengio, half of it in each part."""
    torch.manual_seed(0)
    weight = sequential.SpectralConv1d(40, 60, 30).weight
    assert weight.std().item() == pytest.approx((2 / 100) ** 0.5 * 0.5**0.5, rel=0.02)
