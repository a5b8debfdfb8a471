"""Parts of tensors that stand on other ranks than the parts of the result."""

import numpy as np
import pytest
import torch

import distdl
from distdl.utilities.slicing import compute_start_index, compute_stop_index
from support.ranks import job
from support.tensors import values

pytestmark = pytest.mark.ranks(2, 3)

X_SHAPE, Y_SHAPE = [2, 3, 5, 7], [2, 3, 9, 8]
RANKS = {"all": range(8), "all but the last": range(job.size - 1), "all but the first": range(1, 8), "first": [0]}


def place(P_world, which):
    """(start and stop of the x part, of the y part), by rank: None where the rank is outside."""
    ranks = [rank for rank in RANKS[which] if rank < job.size]
    return P_world.create_partition_inclusive(ranks).create_cartesian_topology_partition([1, 1, 1, len(ranks)])


def bounds(P, shape):
    if not P.active:
        return np.zeros(4, int), np.zeros(4, int)
    return compute_start_index(P.shape, P.index, shape), compute_stop_index(P.shape, P.index, shape)


@pytest.mark.parametrize("mode", ["nearest", "linear", "bicubic"])
@pytest.mark.parametrize("of_y", RANKS)
@pytest.mark.parametrize("of_x", RANKS)
def test_parts_on_other_ranks(P_world, of_x, of_y, mode):
    """A rank may have a part of x only, of y only, of both, or of none."""
    P_x, P_y = place(P_world, of_x), place(P_world, of_y)
    x_part, y_part = bounds(P_x, X_SHAPE), bounds(P_y, Y_SHAPE)
    layer = distdl.nn.interpolate.Interpolate(*x_part, X_SHAPE, *y_part, Y_SHAPE, mode=mode)
    x = distdl.zero_volume_tensor()
    if P_x.active:
        x = values(X_SHAPE)[tuple(slice(*one) for one in zip(*x_part, strict=True))].contiguous()
    x.requires_grad_()
    y = layer(x)
    if P_x.active and P_y.active:
        assert list(y.shape) == list(y_part[1] - y_part[0])
    else:
        assert y.shape == ((2, 0) if P_x.active else (0,))
    cotangent = torch.ones_like(y)
    y.backward(cotangent)
    assert torch.allclose((x.grad * x.detach()).sum(), (y.detach() * cotangent).sum(), atol=1e-9)
    if P_x.size == 1 and P_x.active and P_y.active:  # which has all that y depends on
        kind = {"linear": "bilinear"}.get(mode, mode)
        corners = {} if mode == "nearest" else {"align_corners": False}
        whole = torch.nn.functional.interpolate(x.detach(), Y_SHAPE[2:], mode=kind, **corners)
        expected = whole[tuple(slice(*one) for one in zip(*y_part, strict=True))]
        assert torch.allclose(y, expected)
