"""Layer and group normalization beside large means."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import assemble, block_of, grid, grid_shapes
from support.normal import numbers
from support.ranks import job


@pytest.mark.parametrize("kind", ["LayerNorm", "GroupNorm"])
def test_small_variance_of_features(P_world, kind):
    for shape in grid_shapes(2, job.size):
        P_x, x = grid(P_world, shape), (numbers((3, 32)) + 1e5).float()
        layer = dnn.DistributedLayerNorm(P_x, 32) if kind == "LayerNorm" else dnn.DistributedGroupNorm(P_x, 1, 32)
        y = assemble(layer(block_of(x, P_x)), P_x, x.shape)
        exact = torch.nn.functional.layer_norm(x.double(), (32,))
        assert (y - exact).abs().max() <= 4 * 1e5 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("value", [1.1e4, 1e8, -3.3e30])
def test_features_that_are_constant(P_world, value):
    """The mean is as exact as the features, so that nothing but the error of the deviations is left."""
    P_x = grid(P_world, [1, job.size])
    y = dnn.DistributedLayerNorm(P_x, 7 * job.size)(block_of(torch.full((3, 7 * job.size), value), P_x))
    if job.size > 1:  # one worker calls torch's function
        torch.testing.assert_close(y, torch.zeros_like(y), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_features_beside_a_large_mean(P_world, mean):
    """As near to double precision as numbers of single precision are."""
    P_x = grid(P_world, [1, job.size])
    x = numbers((3, 16 * job.size)).float() + mean
    y = dnn.DistributedLayerNorm(P_x, 16 * job.size)(block_of(x, P_x))
    expected = torch.nn.LayerNorm(16 * job.size, dtype=torch.float64)(x.double())
    if job.size > 1:  # one worker calls torch's function
        torch.testing.assert_close(y.double(), block_of(expected, P_x).detach(), rtol=1e-6, atol=1e-6)
