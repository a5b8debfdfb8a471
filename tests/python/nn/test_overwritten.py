"""Inputs written in place after a call: the backward pass raises as torch.nn's does, for every size."""

import functools

import pytest
import torch

import distdl
import distdl.fft
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
    "batch norm": lambda P: dnn.DistributedBatchNorm1d(P, 2),
    "instance norm": lambda P: dnn.DistributedInstanceNorm1d(P, 2),
    "group norm": lambda P: dnn.DistributedGroupNorm(P, 1, 2),
    "transform": lambda P: functools.partial(distdl.fft.rfft, P_x=P),
}
EMPTY = ["batch norm", "instance norm", "group norm", "transform"]  # which take any blocks
UPSAMPLE = {"mode": "linear", "scale_factor": 2.0}  # saves nothing


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("length", [6, 20000])
@pytest.mark.parametrize("name", LAYERS)
def test_raises_in_the_backward_pass(P_world, name, length):
    layer = LAYERS[name](grid(P_world, [1, 1, job.size]))
    leaf = torch.rand(1, 2, length, requires_grad=True)
    layer(leaf * 1).abs().sum().backward()
    x = leaf * 1
    y = layer(x)
    x.add_(1)
    whole = name in EMPTY and job.size == 1  # for which torch's own function is called
    said = "modified by an inplace operation" + (": the input, of shape" if not whole else "")
    raises_everywhere(RuntimeError, said, y.abs().sum().backward)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", EMPTY)
def test_raises_on_ranks_with_empty_blocks(P_world, name):
    """They would wait for the others."""
    call, n = LAYERS[name](grid(P_world, [1, 1, job.size])), 6 * (job.rank > 0)
    leaf = torch.rand(1, 2, n, requires_grad=True)
    x = leaf * 1
    y = call(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match=rf"modified by an inplace operation: the input, of shape \[1, 2, {n}\]"):
        y.abs().sum().backward()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_an_input_that_is_dropped(P_world, make):
    """Also a worker that computed from a copy raises, when nobody has the input any more."""
    layer, leaf = make(grid(P_world, [1, 1, 2])), torch.rand(1, 2, 8, requires_grad=True)
    x = leaf * 1
    y = layer(x)
    x.add_(1)
    del x
    raises_everywhere(RuntimeError, "modified by an inplace operation: the input, of shape", y.abs().sum().backward)


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
