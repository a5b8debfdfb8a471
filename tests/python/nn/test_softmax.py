"""Softmax beside torch.nn's where the examples do not reach: numbers, the choice of the dimension, wrong inputs."""

import pytest
import torch
from torch.autograd import forward_ad

import distdl
import distdl.nn as dnn
from distdl import _core
from support.blocks import block_of, grid
from support.ranks import job, raises_everywhere


@pytest.mark.parametrize("dims", [0, 1, 2, 3, 4])
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_the_dimension_that_is_not_given(P_world, dims):
    """Is the dimension that torch.nn chooses."""
    P_x = grid(P_world, [1] * dims)
    x = torch.arange(3.0**dims).reshape([3] * dims)
    for kind in (torch.nn.Softmax, torch.nn.LogSoftmax, torch.nn.Softmin):
        block = block_of(x, P_x)
        y = dnn.SEQUENTIAL[kind](P_x)(block)
        assert not P_x.active or torch.equal(y, kind()(x))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("axis", [0, 1])
def test_other_dtypes_raise_on_all(P_world, dtype, axis):
    P_x = grid(P_world, [1, job.size])
    layer = dnn.DistributedSoftmax(P_x, axis)
    raises_everywhere(ValueError, f"an input of {dtype}", lambda: layer(torch.ones(2, 3).to(dtype)))


def test_images_have_three_or_four_dimensions(P_world):
    raises_everywhere(ValueError, "C, H, W", lambda: dnn.DistributedSoftmax2d(grid(P_world, [1, job.size])))


KINDS = [torch.nn.Softmax, torch.nn.LogSoftmax, torch.nn.Softmin]


@pytest.mark.parametrize("kind", KINDS)
def test_documentation(kind):
    assert all(section in dnn.SEQUENTIAL[kind].__doc__ for section in ("Args:", "dim: the", "Shape:", "Raises:"))


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_without_gradients_take_part_in_those_of_the_others(P_world, kind):
    """Only the first worker's input requires gradients."""
    P_x = grid(P_world, [1, job.size])
    x = torch.linspace(-1, 2, 6 * job.size, dtype=torch.float64).square().view(2, -1)
    block = block_of(x, P_x).requires_grad_(P_x.rank == 0)
    dnn.SEQUENTIAL[kind](P_x, 1)(block).pow(3).sum().backward()
    whole = x.clone().requires_grad_()
    kind(1)(whole).pow(3).sum().backward()
    assert (block.grad is not None) == (P_x.rank == 0)
    if P_x.rank == 0:
        torch.testing.assert_close(block.grad, block_of(whole.grad, P_x))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_that_are_asked_for_without_the_structure_check(P_world, kind):
    P_x = grid(P_world, [1, job.size])
    x = torch.linspace(-1, 2, 6 * job.size, dtype=torch.float64).square().view(2, -1)
    layer, block = dnn.SEQUENTIAL[kind](P_x, 1), block_of(x, P_x)
    with distdl.structure_check(False):
        for _ in range(2):  # the first call votes
            layer(block)
        layer(block.requires_grad_()).pow(3).sum().backward()
    kind(1)(x.requires_grad_()).pow(3).sum().backward()
    torch.testing.assert_close(block.grad, block_of(x.grad, P_x))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_forward_derivatives(P_world, kind):
    P_x = grid(P_world, [1, job.size])
    x = torch.linspace(-1, 2, 6 * job.size, dtype=torch.float64).square().view(2, -1)
    _, expected = torch.func.jvp(kind(1), (x,), (x.sin(),))
    with forward_ad.dual_level():
        block = forward_ad.make_dual(block_of(x, P_x), block_of(x.sin(), P_x))
        tangent = forward_ad.unpack_dual(dnn.SEQUENTIAL[kind](P_x, 1)(block)).tangent
        torch.testing.assert_close(tangent, block_of(expected, P_x))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [(2, 2), (300, 300)], ids=["small", "in pieces"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces(P_world, kind, rows, axis):
    """As many rows at a time as stay in the cache, of any strides, with infinities, and with no elements on a rank."""
    shape = [*rows]
    shape.insert(axis, 2 * job.size - 2)
    x = torch.linspace(-3, 2, torch.Size(shape).numel(), dtype=torch.float64).square().reshape(shape)
    x[0, 0, 0] = torch.inf if kind is torch.nn.Softmin else -torch.inf  # of which the exponential is 0
    P_x, sizes = grid(P_world, [job.size if d == axis else 1 for d in range(3)]), [None] * 3
    sizes[axis] = [2] * (job.size - 1) + [0]
    whole, block = x.clone().requires_grad_(), block_of(x, P_x, sizes).mT.contiguous().mT.requires_grad_()
    expected, y = kind(axis)(whole), dnn.SEQUENTIAL[kind](P_x, axis)(block)
    torch.testing.assert_close(y, block_of(expected, P_x, sizes), rtol=1e-13, atol=1e-13)
    slopes = torch.linspace(1, 2, x.numel(), dtype=torch.float64).reshape(shape)
    expected.backward(slopes)
    y.backward(block_of(slopes, P_x, sizes).mT.contiguous().mT)
    torch.testing.assert_close(block.grad, block_of(whole.grad, P_x, sizes), rtol=1e-13, atol=1e-13)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4), (300, 3, 300), (0, 3, 4), (2, 0, 4)], ids=str)
def test_scaled_powers(shape, dtype):
    x, scale = torch.randn(shape, dtype=dtype), torch.rand(shape[0], 1, shape[2], dtype=dtype)
    largest = x.amax(1, keepdim=True) if shape[1] else torch.zeros_like(scale)
    expected = (x - largest).exp() * scale
    assert torch.equal(_core.scaled_powers(x, largest, scale, 1), expected)
    assert torch.equal(_core.scaled_powers(x.mT.contiguous().mT, largest, scale, 1), expected)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", KINDS)
def test_written_results_raise_on_all(P_world, kind):
    """The backward pass needs the result, and all ranks wait for each other there."""
    P_x = grid(P_world, [1, job.size])
    y = dnn.SEQUENTIAL[kind](P_x, 1)(torch.ones(2, 3, requires_grad=True))
    total = y.sum()
    if job.rank == 0:
        y.detach().add_(1)
    raises_everywhere(RuntimeError, "modified by an inplace operation", total.backward)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_one_rank_has_freed(P_world, kind):
    P_x = grid(P_world, [1, job.size])
    total = dnn.SEQUENTIAL[kind](P_x, 1)(torch.ones(2, 3, requires_grad=True)).sum()
    total.backward(retain_graph=job.rank > 0)
    raises_everywhere(RuntimeError, "backward through the graph a second time", total.backward)
