"""Normalization beside torch.nn: what the examples in support/families/norms.py do not say."""

import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from distdl import _core
from support.blocks import assemble, block_of, blocks_of, grid, grid_shapes
from support.families.norms import described, of_batch
from support.ranks import draws, job, on_all_ranks, raises_everywhere, together
from support.sequential import assert_equals_sequential
from support.tensors import same_bits, values


def numbers(shape, seed=0, dtype=torch.float64):
    """Normal numbers, the same on all ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def filled(module):
    """Parameters and running statistics that are not trivial, the same on all ranks."""
    with torch.no_grad():
        for i, tensor in enumerate((*module.parameters(), *module.buffers())):
            if tensor.is_floating_point():
                tensor.copy_(numbers(tensor.shape, 50 + i).abs() + 0.5)
    return module


@st.composite
def norms(draw):
    """A class of torch.nn, its arguments, the shapes of an input and of P_x, and the sizes of blocks."""
    kind = draw(st.sampled_from(sorted(described)))
    size = st.integers(1, 5)
    last = int(kind[-2]) if kind.endswith("d") else draw(st.integers(0, 2))
    lead = 2
    if kind.startswith("Instance"):
        lead = draw(st.integers(1, 2))
    elif kind == "BatchNorm1d":
        last = draw(st.integers(0, 1))
    elif kind == "LocalResponseNorm":
        last = max(last, 1)
    shape = draw(st.lists(size, min_size=lead + last, max_size=lead + last))
    channels = shape[lead - 1]
    options = {"eps": draw(st.sampled_from([1e-5, 0.1]))} if kind != "LocalResponseNorm" else {}
    affine, bias = draw(st.booleans()), draw(st.booleans())
    if kind in ("LayerNorm", "RMSNorm"):
        arguments = (shape[-draw(st.integers(1, len(shape))) :],)
        options |= {"elementwise_affine": affine, **({"bias": bias} if kind == "LayerNorm" else {})}
    elif kind == "GroupNorm":
        groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
        arguments, options = (groups, channels), {**options, "affine": affine, "bias": bias}
    elif kind == "LocalResponseNorm":
        arguments = (draw(size), draw(st.sampled_from([1.0, 0.5])), draw(st.sampled_from([0.75, 2.0])))
    else:
        options |= {"affine": affine, "bias": bias, "track_running_stats": draw(st.booleans())}
        arguments, options["momentum"] = (channels,), draw(st.sampled_from([None, 0.1, 1.0]))
    if draw(st.integers(0, 9)) == 0 and kind[:5] not in ("Layer", "RMSNo", "Insta"):
        shape[0 if lead == 2 else -1] = 0
    grids = [counts for counts in grid_shapes(len(shape), job.size) if math.prod(counts) >= job.size - 1]
    workers = draw(st.sampled_from(grids))
    return kind, arguments, options, draw(st.booleans()), shape, workers, draw(blocks_of(shape, workers))


@draws(300)
@given(norms())
@on_all_ranks
def test_any_norm(P_world, drawn):
    """All options, dimensions, partitions and blocks, up to the second derivatives: or both refuse the input."""
    kind, arguments, options, training, shape, workers, sizes = drawn
    P_x, x = grid(P_world, workers), numbers(shape)

    def twin():
        keywords = {} if kind == "LocalResponseNorm" else {**options, "dtype": torch.float64}
        return filled(getattr(torch.nn, kind)(*arguments, **keywords)).train(training)

    example = described[kind](twin(), x)
    try:
        twin()(x)
    except ValueError:
        layer = example.make(twin(), P_x)
        if P_x.active:
            with pytest.raises(ValueError, match="Expected more than 1"):
                layer(block_of(x, P_x))
        return
    sizes = [None if axis in example.balanced else along for axis, along in enumerate(sizes)]
    assert_equals_sequential(dataclasses.replace(example, twin=twin, inputs=lambda: (x.clone(),)), P_x, sizes)


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


@pytest.mark.parametrize("kind", ["LayerNorm", "GroupNorm"])
def test_small_variance_of_features(P_world, kind):
    for shape in grid_shapes(2, job.size):
        P_x, x = grid(P_world, shape), (numbers((3, 32)) + 1e5).float()
        layer = dnn.DistributedLayerNorm(P_x, 32) if kind == "LayerNorm" else dnn.DistributedGroupNorm(P_x, 1, 32)
        y = assemble(layer(block_of(x, P_x)), P_x, x.shape)
        exact = torch.nn.functional.layer_norm(x.double(), (32,))
        assert (y - exact).abs().max() <= 4 * 1e5 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("momentum", [None, 0.3])
@pytest.mark.parametrize("kind", ["BatchNorm1d", "SyncBatchNorm", "InstanceNorm1d"])
def test_several_batches_before_a_step(P_world, kind, momentum):
    """Batches of different sizes in training, gradients added up, then evaluation; all copies have the same bits."""
    for shape in grid_shapes(3, job.size):
        P_x = grid(P_world, shape)
        twin = filled(getattr(torch.nn, kind)(4, momentum=momentum, affine=True, track_running_stats=True).double())
        layer = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x)
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (twin, layer)]
        for step in range(2):
            for batch in range(3):
                x = numbers((2 + batch, 4, 5), 10 * step + batch)
                twin(x).square().sum().backward()
                layer(block_of(x, P_x)).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        state = distdl.sequential_state_dict(layer)
        for name, value in state.items():
            assert torch.allclose(value, twin.state_dict()[name], rtol=1e-10, atol=1e-10), name
        y = assemble(layer.eval()(block_of(x, P_x)), P_x, x.shape)
        assert torch.allclose(y, twin.eval()(x), rtol=1e-10, atol=1e-10)
        copies = together((P_x.index[1], layer.running_mean, layer.running_var) if P_x.active else None)
        for statistics in filter(None, copies):
            for other in filter(None, copies):
                assert statistics[0] != other[0] or all(map(same_bits, statistics[1:], other[1:]))


@pytest.mark.ranks(2)
def test_messages(P_world):
    """One gathering in each direction in training, none in evaluation, none where no group is split."""

    def gatherings(layer, x):
        """[forward, backward]"""
        layer(x)
        distdl.reset_comm_stats()
        layer(x.clone().requires_grad_()).sum().backward()
        stats = distdl.comm_stats()
        return [stats[name].calls if name in stats else 0 for name in ("AllGather", "AllGather adjoint")]

    rows, channels = grid(P_world, (2, 1, 1)), grid(P_world, (1, 2, 1))
    x = numbers((4, 4, 3))
    for make in (dnn.DistributedBatchNorm1d, dnn.DistributedBatchNorm):
        layer = make(rows, 4, dtype=torch.float64)
        assert gatherings(layer, block_of(x, rows)) == [1, 1]
        assert gatherings(layer.eval(), block_of(x, rows)) == [0, 0]
        assert gatherings(make(channels, 4, dtype=torch.float64), block_of(x, channels)) == [0, 0]
    aligned, spread = (dnn.DistributedGroupNorm(channels, groups, 4, dtype=torch.float64) for groups in (2, 1))
    assert gatherings(aligned, block_of(x, channels)) == [0, 0]
    assert gatherings(spread, block_of(x, channels)) == [1, 1]
    assert gatherings(dnn.DistributedLayerNorm(rows, 3, dtype=torch.float64), block_of(x, rows)) == [0, 0]
    assert gatherings(dnn.DistributedInstanceNorm1d(rows, 4), block_of(x, rows)) == [0, 0]


@pytest.mark.mpi(min_size=2)
def test_ranks_in_different_modes(P_world):
    """They would wait for each other: it raises on all of them."""
    P_x = grid(P_world, (job.size, 1))
    layer, x = dnn.DistributedBatchNorm1d(P_x, 3).train(job.rank > 0), torch.ones(2, 3)
    raises_everywhere(ValueError, "DistributedBatchNorm1d", lambda: layer(x))
    layer.train()
    layer(x)


def test_a_single_value(P_world):
    """The count is the whole tensor's."""
    P_x = grid(P_world, (job.size, 1, 1))
    layer = dnn.DistributedBatchNorm1d(P_x, 2)
    x = block_of(torch.ones(1, 2, 1), P_x)
    raises_everywhere(ValueError, r"Expected more than 1 value .*\[1, 2, 1\]", lambda: layer(x))
    layer.eval()(x)
    layer.train()
    if job.size > 1:
        layer(torch.ones(1, 2, 1))  # one on each worker
    P_x = grid(P_world, (1, 1, job.size))
    instance, x = dnn.DistributedInstanceNorm1d(P_x, 2), block_of(torch.ones(3, 2, 1), P_x)
    raises_everywhere(ValueError, r"more than 1 spatial element .*\[3, 2, 1\]", lambda: instance(x))
    group = dnn.DistributedGroupNorm(P_x, 2, 2)
    x = block_of(torch.ones(1, 2, 1), P_x)
    raises_everywhere(ValueError, r"more than 1 value .*\[1, 2, 1\]", lambda: group(x))


@pytest.mark.mpi(min_size=2)
def test_unbalanced_channels(P_world):
    """Refused where parameters or running statistics live in balanced blocks, and normalized otherwise."""
    P_x, x = grid(P_world, (1, job.size, 1)), numbers((2, 4, 3))
    sizes = [None, [4, *[0] * (job.size - 1)], None]
    block = block_of(x, P_x, sizes)
    refused = "balanced blocks of num_"
    for layer in (
        dnn.DistributedBatchNorm1d(P_x, 4, dtype=torch.float64),
        dnn.DistributedBatchNorm1d(P_x, 4, affine=False),
        dnn.DistributedInstanceNorm1d(P_x, 4, affine=True),
        dnn.DistributedGroupNorm(P_x, 2, 4),
    ):
        raises_everywhere(ValueError, refused, lambda layer=layer: layer(block))
    y = dnn.DistributedBatchNorm1d(P_x, 4, affine=False, track_running_stats=False)(block)
    expected = torch.nn.functional.batch_norm(x, None, None, training=True)
    assert torch.allclose(assemble(y, P_x, x.shape, sizes), expected)


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


def test_volumes_in_another_order_of_memory(P_world):
    """torch refuses them: a block must not be refused on the ranks where it is in such an order."""
    x = values((3, 2, 4, 2, 2))
    expected = torch.nn.LocalResponseNorm(3)(x)
    layer = dnn.DistributedLocalResponseNorm(grid(P_world, (1, 1, 1, 1, 1)), 3)
    y = layer(x.permute(0, 4, 3, 2, 1).contiguous().permute(0, 4, 3, 2, 1) if job.rank == 0 else x[:0])
    assert job.rank or torch.equal(y, expected)


def test_partitions_that_do_not_fit(P_world):
    P = [grid(P_world, (1,) * dims) for dims in range(5)]
    for dims, kind in ((1, "BatchNorm1d"), (3, "BatchNorm2d"), (1, "BatchNorm"), (4, "InstanceNorm1d")):
        make = getattr(dnn, f"Distributed{kind}")
        raises_everywhere(ValueError, f"Distributed{kind}: P_x has shape", lambda make=make, P_x=P[dims]: make(P_x, 2))
    raises_everywhere(ValueError, "P_x has shape", lambda: dnn.DistributedLayerNorm(P[1], (2, 3)))
    raises_everywhere(ValueError, "P_x has shape", lambda: dnn.DistributedGroupNorm(P[1], 1, 2))
    raises_everywhere(ValueError, "P_x has shape", lambda: dnn.DistributedLocalResponseNorm(P[2], 2))


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


@pytest.mark.parametrize("value", [1.1e4, 1e8, -3.3e30])
def test_features_that_are_constant(P_world, value):
    """The mean is as exact as the features, so that nothing but the error of the deviations is left."""
    P_x = grid(P_world, [1, job.size])
    y = dnn.DistributedLayerNorm(P_x, 7 * job.size)(block_of(torch.full((3, 7 * job.size), value), P_x))
    if job.size > 1:  # one worker calls torch's function
        torch.testing.assert_close(y, torch.zeros_like(y), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_features_beside_a_large_mean(P_world, mean):
    """As near to double precision as numbers of single precision are."""
    P_x = grid(P_world, [1, job.size])
    x = numbers((3, 16 * job.size)).float() + mean
    y = dnn.DistributedLayerNorm(P_x, 16 * job.size)(block_of(x, P_x))
    expected = torch.nn.LayerNorm(16 * job.size, dtype=torch.float64)(x.double())
    if job.size > 1:  # one worker calls torch's function
        torch.testing.assert_close(y.double(), block_of(expected, P_x).detach(), rtol=1e-6, atol=1e-6)


def groups_of_one_worker(x, channels=(1, 2)):
    """Each channel of a block is a group of its own."""
    n = math.prod(x.shape[slice(*channels)])
    count, own = x.numel() // max(1, n), torch.arange(n)
    return _core.MomentGroups(channels, [n], own, torch.full([n], float(count), dtype=torch.double), own, n, count)


SHAPES = [
    (1, 3, 10_000),
    (2, 2, 4099),
    (3, 1, 17),
    (2, 3, 1),
    (0, 2, 5),
    (2, 0, 5),
    (9000, 3),
    (70, 300),
    (2, 3, 40, 60),
]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moments_of_channels(dtype, shape):
    """Of more elements than are summed at a time, beside a large mean, a first element that is far off, constants."""
    torch.manual_seed(0)
    mean = 1e5 if dtype.itemsize > 2 else 100.0
    x = (torch.randn(shape, dtype=torch.float64) + mean).to(dtype)
    others = [x, torch.full_like(x, mean)]
    if x.numel():
        others.append(x.clone())
        others[-1][0, 0].view(-1)[0] = -100 * mean if dtype.itemsize > 2 else -mean
    if len(shape) == 4:
        others += [x.to(memory_format=torch.channels_last), x.mT.contiguous().mT]
    dims = [d for d in range(len(shape)) if d != 1]
    for tensor in others:
        _, message = _core.block_moments(tensor, groups_of_one_worker(tensor))
        means, squares = message.view(2, -1)
        exact = tensor.double()
        n = max(1, exact[:, :1].numel())
        expected = exact.sum(dims) / n
        torch.testing.assert_close(means, expected, rtol=1e-13, atol=0)
        deviations = (exact - expected.view(1, -1, *[1] * (len(shape) - 2))).square().sum(dims)
        torch.testing.assert_close(squares, deviations, rtol=1e-7, atol=1e-13 * n)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if math.prod(shape)], ids=str)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_normalized_block(dtype, shape, order):
    """Numbers and gradients by the kernels, beside torch's in double precision; the memory order and dtype stay."""
    if order is torch.channels_last and len(shape) != 4:
        return
    torch.manual_seed(0)
    x = (torch.randn(shape, dtype=torch.float64) + 3).to(dtype).contiguous(memory_format=order)
    slopes = torch.randn(shape, dtype=torch.float64).to(dtype)
    weight, bias = (torch.randn(shape[1], dtype=torch.float64).to(dtype) for _ in range(2))
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    groups = groups_of_one_worker(x)
    same, message = _core.block_moments(x, groups)
    y, *_ = _core.normalize_block(same, message, groups, weight, bias, 1e-3, math.inf, dtype)
    gradients = torch.autograd.grad(y, leaves, slopes, retain_graph=True)
    doubles = [tensor.detach().double().requires_grad_() for tensor in leaves]
    expected = torch.nn.functional.batch_norm(doubles[0], None, None, *doubles[1:], True, eps=1e-3)
    exact = torch.autograd.grad(expected, doubles, slopes.double())
    assert y.dtype == dtype
    assert y.stride() == x.stride()
    assert gradients[0].stride() == x.stride()
    recorded = torch.autograd.grad(y, leaves, slopes, create_graph=True)
    eps = max(torch.finfo(dtype).eps, 1e-14)  # sums are in double precision
    for actual, number in ((y, expected), *zip(gradients, exact, strict=True), *zip(recorded, exact, strict=True)):
        assert actual.dtype == dtype
        scale = float(number.detach().abs().max()) + 1
        torch.testing.assert_close(actual.double(), number, rtol=4 * eps, atol=8 * eps * scale)


@pytest.mark.ranks(1)
def test_numbers_that_are_not_in_memory():
    """A pending negation of the input, and derivatives that are torch's zeros without memory."""
    x = torch.complex(torch.randn(4, 3), torch.randn(4, 3)).conj().imag
    assert x.is_neg()
    groups = groups_of_one_worker(x)
    assert same_bits(_core.block_moments(x, groups)[1], _core.block_moments(x.clone(), groups)[1])
    leaf = torch.randn(4, 3, requires_grad=True)
    same, messages = _core.block_moments(leaf * 1, groups)
    y, *_ = _core.normalize_block(same, messages, groups, None, None, 1e-3, math.inf, x.dtype)
    zeros = torch._efficientzerotensor(y.shape)
    assert not torch.autograd.grad(y, leaf, zeros)[0].any()


@pytest.mark.ranks(2, 3)
def test_large_blocks(P_world):
    """More elements of a channel than are summed at a time."""
    twin = filled(torch.nn.BatchNorm2d(2, dtype=torch.float64))
    x = numbers((1, 2, 150, 90))
    example = of_batch(twin, x)
    assert_equals_sequential(
        dataclasses.replace(example, inputs=lambda: (x.clone(),)), grid(P_world, (1, 1, job.size, 1))
    )


@pytest.mark.ranks(2)
def test_one_graph_differentiated_several_times(P_world):
    """By the weights alone, by everything, as a graph, and again: the passes leave nothing to each other."""
    torch.manual_seed(3)
    twin = torch.nn.BatchNorm2d(2, dtype=torch.float64)
    P_x = grid(P_world, (1, 1, job.size, 1))
    layer = dnn.DistributedBatchNorm2d.from_sequential(twin, P_x)
    x = torch.randn(1, 2, 6, 5, dtype=torch.float64)
    whole, block = x.clone().requires_grad_(), block_of(x, P_x).requires_grad_()
    cotangent = torch.randn_like(x)
    expected = torch.autograd.grad(twin(whole), whole, cotangent)[0]
    y = layer(block)
    own = block_of(cotangent, P_x)
    for wanted in ([layer.weight], [block, layer.weight], [layer.bias], [block], [block]):
        for create_graph in (False, True, False):
            gradients = torch.autograd.grad(y, wanted, own, retain_graph=True, create_graph=create_graph)
            if wanted[0] is block:
                torch.testing.assert_close(gradients[0], block_of(expected, P_x))
    assert torch.equal(own, block_of(cotangent, P_x))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("kind", ["BatchNorm1d", "InstanceNorm1d", "GroupNorm", "LayerNorm"])
def test_second_derivatives_of_powers(P_world, kind, recorded):
    """The gradient of the result depends on the result: the second pass meets the first pass and the call."""
    twin = {
        "BatchNorm1d": lambda: torch.nn.BatchNorm1d(3, dtype=torch.float64),
        "InstanceNorm1d": lambda: torch.nn.InstanceNorm1d(3, affine=True, dtype=torch.float64),
        "GroupNorm": lambda: torch.nn.GroupNorm(1, 3, dtype=torch.float64),
        "LayerNorm": lambda: torch.nn.LayerNorm(6, dtype=torch.float64),
    }[kind]()
    P_x = grid(P_world, (1, 1, job.size))
    layer = dnn.SEQUENTIAL[type(twin)].from_sequential(filled(twin), P_x)
    x, weights = numbers((4, 3, 6)), numbers((4, 3, 6), 1)

    def second(module, x, weights):
        x.requires_grad_()
        (first,) = torch.autograd.grad((module(x).pow(3) * weights).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x, create_graph=recorded)[0].detach()

    expected = block_of(second(twin, x.clone(), weights), P_x)
    torch.testing.assert_close(second(layer, block_of(x, P_x), block_of(weights, P_x)), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("twin", [torch.nn.LayerNorm(3), torch.nn.GroupNorm(1, 3)], ids=["layer", "group"])
def test_second_derivatives_beside_an_empty_block(P_world, twin):
    """Where each rank has its copy of the parameters, these reach as many of them as on the other rank."""
    with distdl.parameter_layout("replicated"):
        layer = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, grid(P_world, (job.size, 1)))
    whole = torch.tensor([[1.0, 3.0, 4.0]], requires_grad=True)
    block = whole.detach()[: job.rank].requires_grad_()
    for module, x in ((layer, block), (copy.deepcopy(twin), whole)):
        (gradient,) = torch.autograd.grad((module(x) * whole.detach()).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        expected = module.weight.grad
    torch.testing.assert_close(layer.weight.grad, expected)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("twin", "shape", "workers"),
    [
        (torch.nn.LayerNorm((2, 0), dtype=torch.float64), (3, 2, 0), (1, 2, 1)),
        (torch.nn.RMSNorm((0, 3), dtype=torch.float64), (0, 3), (1, 2)),
        (torch.nn.GroupNorm(1, 3, dtype=torch.float64), (0, 3, 2), (1, 2, 1)),
    ],
    ids=str,
)
def test_nothing_in_any_block(P_world, twin, shape, workers):
    example = described[type(twin).__name__](twin, torch.ones(shape, dtype=torch.float64))
    assert_equals_sequential(dataclasses.replace(example, second=False), grid(P_world, workers))


@pytest.mark.mpi(min_size=2)
def test_buffers_converted_on_one_rank(P_world):
    layer = dnn.DistributedBatchNorm1d(grid(P_world, (1, 1, job.size)), 2, affine=False)
    x = torch.ones(1, 2, 3)
    if job.rank == 0:
        layer.half()
    raises_everywhere(ValueError, "the ranks differ; .*buffers, of .torch.float16", lambda: layer(x))
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


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("dims", [3, 4, 5])
@pytest.mark.parametrize("axis", [1, 2], ids=["channels", "space"])
def test_local_response_where_one_worker_has_all_elements(P_world, dtype, dims, axis):
    """All ranks refuse a dtype that torch refuses in a number of dimensions, also ranks without elements."""
    whole = values((2, 3, 2, 2, 2)[:dims], dtype)
    P = grid(P_world, [2 if d == axis else 1 for d in range(dims)])
    x = whole if job.rank == 0 else whole.narrow(axis, 0, 0)
    layer = dnn.DistributedLocalResponseNorm(P, 2)
    try:
        expected = torch.nn.LocalResponseNorm(2)(whole)
    except (RuntimeError, NotImplementedError) as refused:
        raises_everywhere(type(refused), "DistributedLocalResponseNorm", lambda: layer(x))
        return
    assert layer(x).dtype == expected.dtype
