"""What spectral convolutions refuse, also where a worker has no frequencies and nothing to multiply."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import grid
from support.ranks import raises_everywhere


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_dtypes_are_refused_on_all_ranks(P_world, dtype):
    """Two frequencies: of three workers one has none, and would wait for the others."""
    layer = dnn.SpectralConv1d(grid(P_world, [1, 1, P_world.size]), 2, 2, 3).to(dtype)
    x = torch.ones(1, 2, 4, dtype=dtype)
    raises_everywhere(RuntimeError, "single and double precision", lambda: layer(x))
    with torch.autocast("cpu", torch.bfloat16):
        raises_everywhere(RuntimeError, "single and double precision", lambda: layer(x))
