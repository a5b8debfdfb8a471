"""Convolutions whose blocks are not copied: of the same layers as in test_conv.py, which draws both kinds."""

import math
from unittest import mock

import pytest
import torch
from torch.autograd import forward_ad

import distdl
import distdl.nn as dnn
from distdl import _core
from distdl.nn.conv import halo as conv_halo
from support.blocks import assemble, block_of, grid
from support.ranks import job
from support.tensors import fill_with_integers, values
from support.twins import assert_equals_twin


@pytest.fixture(autouse=True)
def _small_blocks():
    with mock.patch.object(conv_halo, "SMALLEST", 0):
        yield


def twins(P_x, dims, kernel=3, dtype=torch.float64, output_blocks="balanced", **options):
    """A sequential and a distributed layer with the same parameters, whole numbers."""
    sequential, distributed = getattr(torch.nn, f"Conv{dims}d"), getattr(dnn, f"DistributedConv{dims}d")
    twin = fill_with_integers(sequential(2, 3, kernel, dtype=dtype, **options))
    layer = distributed(P_x, 2, 3, kernel, dtype=dtype, output_blocks=output_blocks, **options)
    with torch.no_grad():
        for parameter, whole in zip(layer.parameters(), twin.parameters(), strict=True):
            parameter.copy_(whole if job.rank == P_x.ranks[0] else whole[:0])
    return twin, layer


def in_space(P, dims):
    """As many workers as there are, in a line and, if possible, in a square."""
    shapes = [[1, 1, job.size, *[1] * (dims - 1)], [1, 1, *[1] * (dims - 1), job.size]]
    if dims > 1 and math.isqrt(job.size) ** 2 == job.size:
        shapes.append([1, 1, *[math.isqrt(job.size)] * 2, *[1] * (dims - 2)])
    return [grid(P, shape) for shape in shapes]


OPTIONS = {
    "as large as the input": {"padding": 1},
    "wide": {"kernel": 7, "padding": 3},
    "of even size": {"kernel": 4, "padding": 1},
    "without padding": {"kernel": 5},
    "padded by more than it reads": {"kernel": 3, "padding": 3},
    "dilated": {"padding": 2, "dilation": 2},
    "strided": {"padding": 1, "stride": 2},
    "strided and dilated": {"kernel": 5, "padding": 4, "stride": 3, "dilation": 2},
    "without bias": {"padding": 1, "bias": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_equals_conv(P_world, dims, options):
    """Halos on both sides of a block, along one dimension or two, with corners."""
    for P_x in in_space(P_world, dims):
        twin, layer = twins(P_x, dims, **options)
        x = values([2, 2, *[8 * job.size if p > 1 else 7 for p in P_x.shape[2:]]])
        owners = [grid(P_world, [1] * parameter.dim(), [0]) for parameter in twin.parameters()]
        assert_equals_twin(layer, twin, x, P_x, P_x, owners)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_blocks_of_any_size_that_keep_their_borders(P_world, dims, stride):
    """Blocks that are not balanced are convolved where they are, too, if the outputs are aligned with them."""
    for P_x in in_space(P_world, dims):
        twin, layer = twins(P_x, dims, padding=1, stride=stride, output_blocks="aligned")
        along = [[7, *[4 + 2 * (i % 2) for i in range(p - 1)]][:p] if p > 1 else None for p in P_x.shape[2:]]
        if stride > 1:  # each block has its halo on one side
            along = [None if sizes is None else [n + n % 2 for n in sizes] for sizes in along]
        x = values([2, 2, *[sum(sizes) if sizes else 7 for sizes in along]])
        owners = [grid(P_world, [1] * parameter.dim(), [0]) for parameter in twin.parameters()]
        y_along = [None if sizes is None else [n // stride for n in sizes] for sizes in along]
        assert_equals_twin(layer, twin, x, P_x, P_x, owners, [None, None, *along], [None, None, *y_along])
        assert layer._halo_convolution is not None or not P_x.active


@pytest.fixture(params=[True, False], ids=["thread", "no thread"])
def _progress_thread(request):
    before = distdl.progress.progress_thread()
    distdl.progress.set_progress_thread(request.param)
    yield
    distdl.progress.set_progress_thread(before)


@pytest.mark.usefixtures("_progress_thread")
@pytest.mark.parametrize("asks", ["input", "input of the last rank", "parameters"])
def test_gradients_of_some(P_world, asks):
    """As in a first layer, or in a layer whose parameters are frozen; a rank that asks for none takes part."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    twin, layer = twins(P_x, 2, padding=1)
    x, last = values([1, 2, 4 * job.size, 5]), job.rank == job.size - 1
    for parameter in layer.parameters():
        parameter.requires_grad_(asks == "parameters")
    block = block_of(x, P_x).requires_grad_(asks == "input" or (asks == "input of the last rank" and last))
    layer(block).square().sum().backward()
    whole = x.clone().requires_grad_()
    twin(whole).square().sum().backward()
    if asks == "parameters":
        for local_parameter, expected in zip(layer.parameters(), twin.parameters(), strict=True):
            assert local_parameter.numel() == 0 or torch.equal(local_parameter.grad, expected.grad)
        assert block.grad is None
    elif asks == "input" or last:
        assert torch.equal(block.grad, block_of(whole.grad, P_x))
    else:
        assert block.grad is None


@pytest.mark.mpi(min_size=2)
def test_blocks_are_saved_once(P_world):
    """Of the input, the graph keeps the block itself and the halo, and no padded copy."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    _, layer = twins(P_x, 2, kernel=5, padding=2)
    block = values([1, 2, 16, 9]).requires_grad_()
    saved = {}

    def keep(tensor):
        saved[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(block)
    inputs = sum(kept.numel() for kept in saved.values() if kept.dim() == 4 and kept.shape[-1] == 9)
    assert block.data_ptr() in saved
    neighbors = (job.rank > 0) + (job.rank < job.size - 1)
    assert inputs == block.numel() + neighbors * 2 * 2 * 9


def test_rounding(P_world):
    """Outputs at a border are a sum of two sums: n products in another order are n roundings at most."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    twin, layer = twins(P_x, 2, padding=1, dtype=torch.float32)
    x = torch.randn(1, 2, 6 * job.size, 7, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y, expected = assemble(layer(block_of(x, P_x)), P_x, twin(x).shape), twin(x)
        terms = torch.nn.functional.conv2d(x.abs(), twin.weight.abs(), twin.bias.abs(), padding=1)
    n = 2 * 3 * 3 + 1
    assert ((y - expected).abs() <= 2 * n * torch.finfo(x.dtype).eps * terms).all()


def test_half_precision_is_rounded_once(P_world):
    """Sums that would be rounded before they are added and once more after that are computed from a copy."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    _, layer = twins(P_x, 2, padding=1, dtype=torch.bfloat16)
    layer(torch.ones(1, 2, 4, 4, dtype=torch.bfloat16))
    assert layer._halo_convolution is None


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode(P_world):
    """Derivatives of input and parameters at once: the layer is linear in either."""
    P_x = grid(P_world, [1, 1, job.size, 1])
    twin, layer = twins(P_x, 2, padding=1)
    x, t = values([1, 2, 4 * job.size, 5]), values([1, 2, 4 * job.size, 5], seed=1)
    with forward_ad.dual_level():
        _, expected = forward_ad.unpack_dual(twin(forward_ad.make_dual(x, t)))
        y, tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(block_of(x, P_x), block_of(t, P_x))))
    assert torch.equal(assemble(y, P_x, twin(x).shape), twin(x))
    assert torch.equal(assemble(tangent, P_x, expected.shape), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128], ids=str)
def test_dtypes(P_world, dtype):
    P_x = grid(P_world, [1, 1, job.size, 1])
    twin, layer = twins(P_x, 2, padding=1, dtype=dtype)
    x = values([1, 2, 4 * job.size, 5], dtype)
    assert_equals_twin(layer, twin, x, P_x, P_x, [grid(P_world, [1] * p.dim(), [0]) for p in twin.parameters()])


def test_unbatched_and_other_layouts(P_world):
    P_x = grid(P_world, [1, job.size, 1])
    twin, layer = twins(P_x, 2, padding=1)
    x = values([2, 4 * job.size, 5])
    block = block_of(x, P_x)
    for tensor in (block, block.movedim(0, -1).contiguous().movedim(-1, 0)):
        assert torch.equal(assemble(layer(tensor), P_x, twin(x).shape), twin(x))


@pytest.mark.ranks(1)
@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_that_is_not_there(place):
    sliding = _core.Sliding(3, 1, 1, [(0, 2), (2, 4)], [(0, 2), (2, 4)], [(-1, 3), (1, 5)])
    with pytest.raises(IndexError, match=f"no place {place} among 2"):
        sliding.halo(place)


@pytest.mark.parametrize(
    ("positions", "weight", "groups", "large"),
    [
        (1 << 16, (16, 16, 3, 3), 1, True),  # 2^20 elements
        ((1 << 16) - 1, (16, 16, 3, 3), 1, False),
        (1 << 11, (128, 128, 3, 3), 1, True),  # 2^18 elements, 9 * 2^25 products
        ((1 << 11) - 1, (128, 128, 3, 3), 1, False),
        (1 << 14, (128, 1, 3, 3), 128, True),  # depthwise, 2^21 elements
        (1 << 12, (128, 1, 7, 7), 128, False),  # 2^19 elements, few products
    ],
)
def test_large_blocks(positions, weight, groups, large):
    with mock.patch.object(conv_halo, "SMALLEST", 1 << 20):
        assert conv_halo.is_large(positions, weight, groups) == large
