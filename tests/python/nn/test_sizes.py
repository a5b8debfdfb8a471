"""Sizes at the edges: as torch.nn does, it refuses what is too large at once, and takes what is of size 0."""

import pytest
import torch

import distdl.nn as dnn
from support.blocks import block_of, grid, grid_shapes
from support.ranks import job, raises_everywhere, together

TOO_LARGE = {
    "size": ("a block of the result has the shape", lambda P: dnn.DistributedUpsample(P, size=2**40)),
    "factor": ("a block of the result has the shape", lambda P: dnn.DistributedUpsample(P, scale_factor=2.0**40)),
    "product": ("their product must be less than", lambda P: dnn.DistributedUpsample(P, size=2**60)),
    "product of areas": ("their product must", lambda P: dnn.DistributedUpsample(P, size=2**60, mode="area")),
    "padding": ("a block of the result has the shape", lambda P: dnn.DistributedPad(P, (2**40, 0))),
    "replication": ("a block of the result has", lambda P: dnn.DistributedPad(P, (0, 2**40), mode="replicate")),
    "periods": (
        "wraps around more than 65536 times",
        lambda P: dnn.HaloExchange(P, [[0, 0], [0, 0], [2**40, 0]], periodic=True),
    ),
}


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(("match", "make"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_too_large(P_world, match, make):
    layer, x = make(grid(P_world, [1, 1, job.size])), torch.ones(1, 1, 8)
    raises_everywhere((RuntimeError, ValueError), match, lambda: layer(x))


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("name", ["AvgPool3d", "LPPool3d"])
@pytest.mark.parametrize("options", [{"ceil_mode": True}, {"padding": (1, 0, 0), "stride": 1}], ids=str)
def test_windows_larger_than_the_input(P_world, name, options):
    """torch.nn refuses them in three dimensions alone, whatever the padding adds."""
    if name == "LPPool3d":
        options = {"norm_type": 2, "ceil_mode": True}
    x, P_x = torch.ones(1, 1, 2, 4, 4), grid(P_world, [1, 1, 1, 1, job.size])
    with pytest.raises(RuntimeError, match="smaller than kernel size"):
        getattr(torch.nn, name)(kernel_size=(3, 1, 1), **options)(x)
    layer = getattr(dnn, f"Distributed{name}")(P_x, kernel_size=(3, 1, 1), **options)
    raises_everywhere(RuntimeError, "may not be larger than the input", lambda: layer(block_of(x, P_x)))


def test_a_value_that_is_not_used(P_world):
    """Cropping alone does not look at the value, which does not fit the dtype."""
    x, P_x = torch.arange(12, dtype=torch.uint8), grid(P_world, [job.size])
    layer = dnn.DistributedPad(P_x, (-2, -1), value=1e4)
    result = torch.cat(together(layer(block_of(x, P_x))))
    assert torch.equal(result, torch.nn.functional.pad(x, (-2, -1), value=1e4))
    layer = dnn.DistributedPad(P_x, (-2, 1), value=1e4)
    raises_everywhere(RuntimeError, "without overflow", lambda: layer(block_of(x, P_x)))


def test_no_parameters(P_world):
    P_x = grid(P_world, [job.size, 1])
    layer = dnn.DistributedPReLU(P_x, 0)
    assert list(layer.weight.shape) == [0]
    assert list(layer(torch.ones(2, 0)).shape) == [2, 0]
    raises_everywhere(RuntimeError, "num_parameters=0 must be 1 or as many", lambda: layer(torch.ones(2, 3)))


of_no_channels = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # torch.nn does


@of_no_channels
@pytest.mark.parametrize(
    "options",
    [{}, {"groups": 2, "stride": 2}, {"padding": 1, "padding_mode": "circular"}, {"bias": False, "padding": "same"}],
    ids=str,
)
def test_convolution_of_no_channels(P_world, options):
    """torch.nn gives a result without channels, and gradients of zeros."""
    twin, x = torch.nn.Conv2d(0, 4, 3, **options), torch.rand(2, 0, 6, 7, requires_grad=True)
    expected = twin(x)
    expected.sum().backward()
    partitions = [[grid(P_world, shape)] for shape in grid_shapes(4, job.size, fixed=(1,))]
    if not {"groups", "padding"} & {*options}:
        partitions.append([grid(P_world, shape) for shape in ([1, job.size, 1, 1], [1] * 4, [1, 1, job.size, 1, 1])])
    for P in partitions:
        P_x, P_y = P[0], P[:2][-1]
        layer, block = dnn.DistributedConv2d.from_sequential(twin, *P), block_of(x.detach(), P_x).requires_grad_()
        result = layer(block)
        result.sum().backward()
        assert all(together(not P_y.active or result.shape == block_of(expected, P_y).shape))
        assert block.grad.shape == block.shape
        assert all(not parameter.grad.any() for parameter in layer.parameters())


@of_no_channels
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_what_no_channels_cannot_be_padded_with(P_world, mode):
    x, P_x = torch.empty(2, 0, 6, 7), grid(P_world, [1, 1, job.size, 1])
    with pytest.raises(RuntimeError, match="non-zero dimensions"):
        torch.nn.Conv2d(0, 4, 3, padding=1, padding_mode=mode)(x)
    layer = dnn.DistributedConv2d(P_x, 0, 4, 3, padding=1, padding_mode=mode)
    raises_everywhere(RuntimeError, "in_channels=0", lambda: layer(block_of(x, P_x)))
    with pytest.raises(RuntimeError, match="at least 1"):
        torch.nn.ConvTranspose2d(0, 4, 3)(x)
    raises_everywhere(RuntimeError, "at least 1", lambda: dnn.DistributedConvTranspose2d(P_x, 0, 4, 3))


def test_a_gradient_in_channels_last_on_one_rank(P_world):
    """torch refuses it for 3-d windows without batch; here this rank would refuse it alone."""
    P_x = grid(P_world, [1, 1, 1, job.size])
    x = torch.rand(2, 4, 4, 4 * job.size, generator=torch.Generator().manual_seed(0))
    whole, block = x.clone().requires_grad_(), block_of(x, P_x).requires_grad_()
    expected = torch.nn.MaxPool3d(2)(whole)
    cotangent = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1))
    expected.backward(cotangent)
    own = block_of(cotangent, P_x)
    dnn.DistributedMaxPool3d(P_x, 2)(block).backward(
        own.contiguous(memory_format=torch.channels_last) if job.rank == 0 else own
    )
    assert torch.equal(block.grad, block_of(whole.grad, P_x))
