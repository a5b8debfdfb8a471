"""Softmax beside torch.nn's where the examples do not reach: numbers, the choice of the dimension, wrong inputs."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import block_of, grid
from support.ranks import job, raises_everywhere


@pytest.mark.parametrize("dims", [0, 1, 2, 3, 4])
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_the_dimension_that_is_not_given(P_world, dims):
    """Is the one that torch.nn chooses."""
    P_x = grid(P_world, [1] * dims)
    x = torch.arange(3.0**dims).reshape([3] * dims)
    for kind in (torch.nn.Softmax, torch.nn.LogSoftmax, torch.nn.Softmin):
        mine = block_of(x, P_x)
        y = dnn.SEQUENTIAL[kind](P_x)(mine)
        assert not P_x.active or torch.equal(y, kind()(x))


def test_integers_raise_on_all(P_world):
    P_x = grid(P_world, [1, job.size])
    layer = dnn.DistributedSoftmax(P_x, 1)
    raises_everywhere(ValueError, "int64", lambda: layer(torch.ones(2, 3, dtype=torch.int64)))


def test_images_have_three_or_four_dimensions(P_world):
    raises_everywhere(ValueError, "C, H, W", lambda: dnn.DistributedSoftmax2d(grid(P_world, [1, job.size])))
