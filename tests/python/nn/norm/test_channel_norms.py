"""Batch and instance normalization: running statistics, the order of memory, dtypes."""

import copy
import dataclasses

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of, grid, grid_shapes
from support.families.norms import of_batch
from support.normal import filled, numbers
from support.ranks import job, raises_everywhere, together
from support.sequential import assert_equals_sequential


@pytest.mark.parametrize("kind", ["BatchNorm2d", "InstanceNorm2d"])
def test_small_variance_beside_a_large_mean(P_world, kind):
    """Single precision, a mean of 1e5 and a standard deviation of 1: with few elements, of which workers differ."""
    for shape in grid_shapes(4, job.size):
        for spread in (0.0, 1.0):  # of the workers' means
            x = (numbers((2, 4, 4, 4)) + spread * numbers((2, 1, 4, 1), 3) + 1e5).float()
            dims = (0, 2, 3) if kind == "BatchNorm2d" else (2, 3)
            expected = x.double().var(dims).view(-1, 4).mean(0)
            P_x = grid(P_world, shape)
            layer = getattr(dnn, f"Distributed{kind}")(P_x, 4, momentum=1.0, track_running_stats=True)
            y = assemble(layer(block_of(x, P_x)), P_x, x.shape)
            variance = layer.running_var.double()
            if P_x.active:
                block = expected[layer.layouts["running_var"].intervals[0][0] :][: variance.numel()]
                assert ((variance - block).abs() <= 1e-4 * block).all(), (shape, variance, block)
            exact = getattr(torch.nn.functional, kind.lower().replace("norm2d", "_norm"))
            exact = exact(x.double(), None, None, None, None, True, 0.0, 1e-5)
            # Of the product of mean and 1 / deviation, which torch.nn rounds as well.
            assert (y - exact).abs().max() <= 4 * 1e5 * torch.finfo(torch.float32).eps


def test_unused_num_features(P_world):
    """torch.nn warns, too."""
    P_x = grid(P_world, (1, 1, job.size))
    with pytest.warns(UserWarning, match="num_features"):
        dnn.DistributedInstanceNorm1d(P_x, 7)(block_of(numbers((2, 3, 8)), P_x))


def test_memory_formats(P_world):
    """Channels in the last place stay there; gradients may come in any strides."""
    for shape in grid_shapes(4, job.size):
        P_x, x = grid(P_world, shape), numbers((4, 3, 4, 5))
        layer, twin = dnn.DistributedBatchNorm2d(P_x, 3, dtype=torch.float64), torch.nn.BatchNorm2d(3).double()
        block = block_of(x, P_x)
        if P_x.active:
            block = block.to(memory_format=torch.channels_last)
        block.requires_grad_()
        y = layer(block)
        several = y.numel() > 0 and y.shape[1] > 1  # a single channel is in any place
        formats = together((tuple(y.shape), y.stride(), block.stride()) if several else None)
        assert all(entry is None or entry[1] == entry[2] for entry in formats), formats
        whole = x.clone().requires_grad_()
        (twin(whole) * whole).mean((0, 2)).sum().backward()
        (y * block).sum((0, 2) if P_x.active else ()).div(16).sum().backward()
        assert torch.allclose(assemble(block.grad, P_x, x.shape), whole.grad)


def test_mixed_dtypes(P_world):
    """Half precision beside parameters of single precision, as torch.nn takes it; double beside single it refuses."""
    P_x, x = grid(P_world, (job.size, 1, 1)), numbers((8, 3, 4))
    layer, twin = dnn.DistributedBatchNorm1d(P_x, 3), torch.nn.BatchNorm1d(3)
    for dtype in (torch.bfloat16, torch.float16):
        expected, y = twin(x.to(dtype)), layer(block_of(x.to(dtype), P_x))
        assert y.dtype == expected.dtype == dtype
        eps = torch.finfo(dtype).eps
        assert torch.allclose(assemble(y, P_x, x.shape).double(), expected.double(), rtol=2 * eps, atol=2 * eps)
    raises_everywhere(RuntimeError, "DistributedBatchNorm1d", lambda: layer(block_of(x, P_x)))


def test_settings(P_world):
    """A copy is a layer by itself; frozen parameters get no gradients; statistics are tracked under no_grad."""
    P_x, x = grid(P_world, (1, 1, job.size)), numbers((2, 3, 8))
    layer = dnn.DistributedBatchNorm1d(P_x, 3, dtype=torch.float64)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        y = layer(block_of(x, P_x))
    assert not y.requires_grad
    assert layer.num_batches_tracked.sum() == 1
    assert copied.num_batches_tracked.sum() == 0
    copied.weight.requires_grad_(False)
    copied(block_of(x, P_x)).sum().backward()
    assert copied.weight.grad is None
    assert copied.bias.grad is not None
    assert torch.equal(copied.running_var, layer.running_var)
    layer.reset_running_stats()
    assert layer.num_batches_tracked.sum() == 0
    assert torch.equal(layer.running_var, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_tracking_that_is_turned_off(P_world, kind, training, momentum, place):
    """As in torch.nn, in whichever dimension the input is split."""
    P_x = grid(P_world, [job.size if d == place else 1 for d in range(3)])
    x = numbers((2 * job.size, 2 * job.size, 3 * job.size))
    options = {"momentum": momentum, "track_running_stats": True, "dtype": torch.float64}
    twin, layer = kind(2 * job.size, **options), dnn.SEQUENTIAL[kind](P_x, 2 * job.size, **options)
    for tracks in (True, False, True):
        for module in (twin, layer):
            module.track_running_stats = tracks
            module.train(training if not tracks else True)
        expected, y = twin(x), layer(block_of(x, P_x))
        torch.testing.assert_close(y, block_of(expected, P_x))
        for name, buffer in twin.named_buffers():
            local_buffer = getattr(layer, name)
            whole = buffer if place != 1 or not buffer.dim() else buffer[2 * P_x.rank : 2 * P_x.rank + 2]
            torch.testing.assert_close(local_buffer, whole)


@pytest.mark.ranks(2, 3)
def test_large_blocks(P_world):
    """More elements of a channel than are summed at a time."""
    twin = filled(torch.nn.BatchNorm2d(2, dtype=torch.float64))
    x = numbers((1, 2, 150, 90))
    example = of_batch(twin, x)
    assert_equals_sequential(
        dataclasses.replace(example, inputs=lambda: (x.clone(),)), grid(P_world, (1, 1, job.size, 1))
    )


@pytest.mark.mpi(min_size=2)
def test_buffers_converted_on_one_rank(P_world):
    layer = dnn.DistributedBatchNorm1d(grid(P_world, (1, 1, job.size)), 2, affine=False)
    x = torch.ones(1, 2, 3)
    if job.rank == 0:
        layer.half()
    raises_everywhere(ValueError, "the ranks differ; .*buffers, of .2 of torch.float16", lambda: layer(x))
    layer.float()
    assert layer(x).shape == x.shape


@pytest.mark.parametrize("split", [0, 2, 3])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["BatchNorm2d", "InstanceNorm2d"])
def test_gradients_in_the_order_of_tokens(P_world, kind, training, split):
    """With blocks of size 1, torch's own functions read them wrongly."""
    shape = [2, 4, 2, 3]
    shape[split] = job.size
    P_x = grid(P_world, [job.size if d == split else 1 for d in range(4)])
    x, weights = numbers(shape, 2), numbers(shape, 3)
    twin = getattr(torch.nn, kind)(4, affine=True, track_running_stats=True, dtype=torch.float64).train(training)
    if job.size == 1 and training and kind == "InstanceNorm2d" and split > 1:
        x, weights = (torch.cat([tensor, tensor.flip(split)], split) for tensor in (x, weights))
    layer = getattr(dnn, f"Distributed{kind}").from_sequential(twin, P_x)
    block, whole = block_of(x, P_x).requires_grad_(), x.clone().requires_grad_()
    tokens, factors = (tensor.flatten(2).mT.contiguous() for tensor in (layer(block), block_of(weights, P_x)))
    (tokens * factors).sum().backward()
    (twin(whole) * weights).sum().backward()  # in plain order
    torch.testing.assert_close(block.grad, block_of(whole.grad, P_x), rtol=1e-11, atol=1e-12)
    gradients = distdl.sequential_gradients(layer)
    for name, parameter in twin.named_parameters():
        assert job.rank or torch.allclose(gradients[name], parameter.grad, rtol=1e-11, atol=1e-12), name
