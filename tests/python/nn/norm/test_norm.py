"""Any norm beside torch.nn, on any partition; what norms refuse."""

import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of, blocks_of, grid, grid_shapes
from support.families.norms import described
from support.normal import filled, numbers
from support.ranks import draws, job, on_all_ranks, raises_everywhere, together
from support.sequential import assert_equals_sequential
from support.tensors import same_bits
from support.versions import NORMS_HAVE_BIAS


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
    affine, bias = draw(st.booleans()), {"bias": draw(st.booleans())}
    if not (NORMS_HAVE_BIAS or kind == "LayerNorm"):
        bias = {}
    if kind in ("LayerNorm", "RMSNorm"):
        arguments = (shape[-draw(st.integers(1, len(shape))) :],)
        options |= {"elementwise_affine": affine, **(bias if kind == "LayerNorm" else {})}
    elif kind == "GroupNorm":
        groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
        arguments, options = (groups, channels), {**options, "affine": affine, **bias}
    elif kind == "LocalResponseNorm":
        arguments = (draw(size), draw(st.sampled_from([1.0, 0.5])), draw(st.sampled_from([0.75, 2.0])))
    else:
        options |= {"affine": affine, **bias, "track_running_stats": draw(st.booleans())}
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


def test_partitions_that_do_not_fit(P_world):
    P = [grid(P_world, (1,) * dims) for dims in range(5)]
    for dims, kind in ((1, "BatchNorm1d"), (3, "BatchNorm2d"), (1, "BatchNorm"), (4, "InstanceNorm1d")):
        make = getattr(dnn, f"Distributed{kind}")
        raises_everywhere(ValueError, f"Distributed{kind}: P_x has shape", lambda make=make, P_x=P[dims]: make(P_x, 2))
    raises_everywhere(ValueError, "P_x has shape", lambda: dnn.DistributedLayerNorm(P[1], (2, 3)))
    raises_everywhere(ValueError, "P_x has shape", lambda: dnn.DistributedGroupNorm(P[1], 1, 2))
    raises_everywhere(ValueError, "P_x has shape", lambda: dnn.DistributedLocalResponseNorm(P[2], 2))


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
