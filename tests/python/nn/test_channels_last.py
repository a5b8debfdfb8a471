"""Results and gradients lie in channels-last memory where those of torch.nn do, with the same values."""

import copy

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import assert_none, noise, off, partitions
from support.ranks import job, together

P_world = distdl.Partition(job)
ORDERS = {4: torch.channels_last, 5: torch.channels_last_3d}
IMAGES = (3, 6, 12, 10)
VOLUMES = (8, 4, 9, 6, 5)  # torch computes small 3-d convolutions of one sample by a kernel that has no such order
LAYERS = [
    (torch.nn.Conv2d(6, 4, 3, padding=1), IMAGES),
    (torch.nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6), IMAGES),
    (torch.nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular"), IMAGES),
    (torch.nn.ConvTranspose2d(6, 4, 3, stride=2), IMAGES),
    (torch.nn.MaxPool2d(3, 2, 1), IMAGES),
    (torch.nn.AvgPool2d(3, 1), IMAGES),
    (torch.nn.AdaptiveAvgPool2d((5, 4)), IMAGES),
    (torch.nn.AdaptiveMaxPool2d(3), IMAGES),
    (torch.nn.BatchNorm2d(6), IMAGES),
    (torch.nn.GroupNorm(2, 6), IMAGES),
    (torch.nn.InstanceNorm2d(6), IMAGES),
    (torch.nn.Upsample(scale_factor=2), IMAGES),
    (torch.nn.Upsample(size=(15, 11), mode="bilinear"), IMAGES),
    (torch.nn.ZeroPad2d((1, 2, 0, 1)), IMAGES),
    (torch.nn.ReflectionPad2d(1), IMAGES),
    (torch.nn.Conv3d(4, 6, 3, padding=1), VOLUMES),
    (torch.nn.MaxPool3d(2), VOLUMES),
    (torch.nn.AvgPool3d(3, 1, 1), VOLUMES),
    (torch.nn.BatchNorm3d(4), VOLUMES),
    (torch.nn.Upsample(scale_factor=2, mode="trilinear"), VOLUMES),
    (torch.nn.Sequential(torch.nn.Conv2d(6, 6, 3, padding=1), torch.nn.BatchNorm2d(6), torch.nn.ReLU(),
                         torch.nn.MaxPool2d(2), torch.nn.Conv2d(6, 2, 1)), IMAGES),
]  # fmt: skip


def channels_last(x):
    """A copy in this order; as it is where there is no block."""
    return x.to(memory_format=ORDERS.get(x.dim(), torch.preserve_format), copy=True).detach().requires_grad_()


def in_channels_last(x):
    return x.stride(1) == 1


@pytest.mark.parametrize(
    ("layer", "shape"), LAYERS, ids=[f"{type(layer).__name__} {i}" for i, (layer, _) in enumerate(LAYERS)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_channels_stay_last(layer, shape, dtype):
    layer, x = copy.deepcopy(layer).to(dtype), noise(shape).to(dtype)
    whole = channels_last(x)
    expected = layer(whole)
    weights = noise(expected.shape, seed=1).to(dtype)
    expected.backward(channels_last(weights))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    problems = []
    for split in partitions(len(shape)):
        P_x = grid(P_world, split)
        ours = distdl.distribute(layer, P_x)
        block = channels_last(distdl.scatter(x, P_x))
        y = ours(block)
        y.backward(channels_last(distdl.scatter(weights, P_x).view(y.shape)))
        for name, own, of_torch in (("result", y, expected), ("gradient", block.grad, whole.grad)):
            problems += [off(distdl.gather(own.detach(), P_x), of_torch, tolerance)]
            strays = own.numel() > 0 and in_channels_last(of_torch) and not in_channels_last(own)
            problems += [f"{name} over {split}: strides {own.stride()}" if any(together(strays)) else ""]
    assert_none(problems)


WITHIN_CHANNELS = [
    torch.nn.Conv2d(6, 4, 3, padding=1),
    torch.nn.BatchNorm2d(6),
    torch.nn.GroupNorm(2, 6),
    torch.nn.LocalResponseNorm(3),
    torch.nn.Sequential(torch.nn.Conv2d(6, 6, 3, padding=1), torch.nn.BatchNorm2d(6), torch.nn.ReLU()),
]


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("layer", WITHIN_CHANNELS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("mixed", [False, True], ids=["all", "some"])
def test_split_channels_stay_last(layer, mixed):
    """Where all ranks have them last; where some do, results are the same, and each rank has its own order."""
    layer, x = copy.deepcopy(layer).double(), noise(IMAGES)
    P_x = grid(P_world, [1, job.size, 1, 1])
    ours = distdl.distribute(layer, P_x)
    block = distdl.scatter(x, P_x)
    is_last = not mixed or job.rank % 2 == 0
    block = channels_last(block) if is_last else block.contiguous().requires_grad_()
    whole = channels_last(x)
    expected, y = layer(whole), ours(block)
    weights = noise(expected.shape, seed=1)
    expected.backward(weights)
    y.backward(distdl.scatter(weights, P_x))
    assert_none([off(distdl.gather(own.detach(), P_x), of_torch, 1e-10)
                 for own, of_torch in ((y, expected), (block.grad, whole.grad))])  # fmt: skip
    assert not any(together(in_channels_last(y) != is_last or in_channels_last(block.grad) != is_last))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("form", ["AllGather", "ReduceScatter"])
def test_convolutions_of_split_channels(form):
    torch.manual_seed(0)
    layer, P_x = torch.nn.Conv2d(6, 6, 3, padding=1).double(), grid(P_world, [1, job.size, 1, 1])
    ours = getattr(distdl.nn, f"DistributedChannel{form}Conv2d").from_sequential(layer, P_x)
    x = noise(IMAGES)
    y = ours(channels_last(distdl.scatter(x, P_x)))
    assert_none([off(distdl.gather(y.detach(), P_x), layer(x), 1e-10)])
    assert all(together(in_channels_last(y)))


@pytest.mark.ranks(2)
def test_transposed_convolutions_without_overlap_copy_nothing():
    layer, P_x = torch.nn.ConvTranspose2d(6, 4, 2, 2), grid(P_world, [1, 1, 2, 1])
    y = distdl.distribute(layer, P_x)(channels_last(distdl.scatter(noise(IMAGES).float(), P_x)))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert y.grad_fn.name() == "ConvolutionBackward0"


@pytest.mark.ranks(2)
def test_replicas_of_channels_last():
    """Two workers that read the same receive it in this order."""
    x = channels_last(noise((2, 4, 3, 5), seed=job.rank))
    for place in range(4):  # of the dimension that stands for the workers
        shape = [1, 1, 2, 1]
        source, target = list(shape), [1, 1, 1, 1]
        source.insert(place, 1)
        target.insert(place, 2)
        rows = [[(0, n)] for n in (2, 4, 6, 5)]
        rows.insert(place, [(0, 1), (0, 1)])
        exchange = distdl.operators.interval_exchange(
            "test", grid(P_world, source).grid, grid(P_world, target).grid, rows
        )
        y = exchange(x.unsqueeze(place)).squeeze(place)
        assert all(together(in_channels_last(y)))
        own = y.detach()[:, :, 3 * job.rank : 3 * job.rank + 3]
        assert all(together(torch.equal(own, x)))


def test_compilers_are_told_that_results_are_contiguous():
    P_x = grid(P_world, [1, 1, P_world.size, 1])
    exchange = distdl.nn.HaloExchange(P_x, [0, 0, 1, 0])
    x = channels_last(noise((2, 3, 2, 5), seed=job.rank))
    expected = exchange(x)
    y = torch.compile(exchange, backend="aot_eager", fullgraph=True)(x)
    y.sum().backward()
    strays = [not in_channels_last(expected), not y.is_contiguous(), not torch.equal(y, expected)]
    assert not any(any(flags) for flags in together(strays))
