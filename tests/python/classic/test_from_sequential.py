"""Layers with old arguments from layers of torch.nn: options that old constructors pass on, and weights."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import assemble, block_of, grid
from support.ranks import job, raises_everywhere
from support.tensors import fill_with_integers, values

pytestmark = pytest.mark.ranks(1, 3)

SPACE = {
    "DistributedConv2d": torch.nn.Conv2d(2, 4, 3, 2, 1, padding_mode="circular"),
    "DistributedFeatureConvTranspose2d": torch.nn.ConvTranspose2d(2, 3, 3, 2, 1, 1),
    "DistributedMaxPool2d": torch.nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "DistributedAvgPool2d": torch.nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "DistributedUpsample": torch.nn.Upsample(scale_factor=2),
    "DistributedLayerNorm": torch.nn.LayerNorm(6, 1e-3),
}


@pytest.mark.parametrize(("name", "twin"), SPACE.items(), ids=SPACE)
def test_in_space(P_world, name, twin):
    P_x, x = grid(P_world, [1, 1, job.size, 1]), values([2, 2, 8, 6], torch.float32)
    layer, expected = getattr(dnn, name).from_sequential(fill_with_integers(twin), P_x), twin(x)
    assert torch.allclose(assemble(layer(block_of(x, P_x)), P_x, expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["DistributedConv1d", "DistributedChannelConv1d", "DistributedLinear"])
def test_with_parameters_within(P_world, name):
    ones = [1] if "Conv" in name else []
    P_x, P_y = grid(P_world, [1, 1, *ones]), grid(P_world, [1, job.size, *ones])
    P_w = grid(P_world, [job.size, 1, *ones])
    twin = fill_with_integers(torch.nn.Conv1d(4, 6, 3) if ones else torch.nn.Linear(4, 6))
    twin.weight.requires_grad_(False)
    layer = getattr(dnn, name).from_sequential(twin, P_x, P_y, P_w)
    x = values([2, 4, 9][: 2 + len(ones)], torch.float32)
    assert torch.equal(assemble(layer(block_of(x, P_x)), P_y, twin(x).shape), twin(x))
    assert not layer.weight.requires_grad
    if ones:
        call = lambda: dnn.DistributedConv1d.from_sequential(twin, P_x, P_y)  # noqa: E731
        raises_everywhere(ValueError, "P_w is not given", call)


def test_losses(P_world):
    P_x, x = grid(P_world, [1, job.size]), values([3, 4], torch.float32).abs() + 1
    for twin in (torch.nn.PoissonNLLLoss(log_input=False), torch.nn.KLDivLoss(reduction="sum", log_target=True)):
        layer = getattr(dnn, f"Distributed{type(twin).__name__}").from_sequential(twin, P_x)
        loss = layer(block_of(x, P_x), block_of(x, P_x))
        assert torch.allclose(loss, twin(x, x) if job.rank == 0 else torch.zeros(()))
