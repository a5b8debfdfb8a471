"""Inputs written in place after a call: the backward pass raises as that of torch.nn does, for every size."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, raises_everywhere

LAYERS = {
    "conv": lambda P: dnn.DistributedConv1d(P, 2, 3, 3),
    "padded conv": lambda P: dnn.DistributedConv1d(P, 2, 3, 3, padding=1),
    "circular conv": lambda P: dnn.DistributedConv1d(P, 2, 3, 3, padding=1, padding_mode="circular"),
    "transposed conv": lambda P: dnn.DistributedConvTranspose1d(P, 2, 3, 3),
    "max pool": lambda P: dnn.DistributedMaxPool1d(P, 3, 1, padding=1),
    "average pool": lambda P: dnn.DistributedAvgPool1d(P, 3, 1, padding=1),
}
UPSAMPLE = {"mode": "linear", "scale_factor": 2.0}  # saves nothing


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("length", [6, 20000])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_raises_in_the_backward_pass(P_world, make, length):
    layer = make(grid(P_world, [1, 1, job.size]))
    leaf = torch.rand(1, 2, length, requires_grad=True)
    layer(leaf * 1).sum().backward()
    x = leaf * 1
    y = layer(x)
    x.add_(1)
    raises_everywhere(RuntimeError, "modified by an inplace operation: the input, of shape", y.sum().backward)


@pytest.mark.ranks(1, 2)
def test_what_saves_nothing(P_world):
    """torch.nn.Upsample does not look at its input again."""
    leaf = torch.rand(1, 2, 6, requires_grad=True)
    for layer in (torch.nn.Upsample(**UPSAMPLE), dnn.DistributedUpsample(grid(P_world, [1, 1, job.size]), **UPSAMPLE)):
        x = leaf * 1
        y = layer(x)
        x.add_(1)
        y.sum().backward()
        assert torch.isfinite(leaf.grad).all()
