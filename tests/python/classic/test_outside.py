"""Ranks that have a part of the input only, of the result only, of both, or of none."""

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of
from support.ranks import job, on_all_ranks
from support.tensors import fill_with_integers, values

pytestmark = pytest.mark.ranks(2, 3)


def on(P_world, ranks, dim):
    """The given ranks, side by side in the last dimension."""
    ranks = sorted({rank % job.size for rank in ranks})
    return P_world.create_partition_inclusive(ranks).create_cartesian_topology_partition([*[1] * (dim - 1), len(ranks)])


def linear(P_world, ranks_x, ranks_y):
    P_x, P_y = on(P_world, ranks_x, 2), on(P_world, ranks_y, 2)
    P_w = P_x.size * P_y.size
    if P_w > job.size:
        pytest.skip("takes more ranks")
    P_w = P_world.create_partition_inclusive(range(P_w)).create_cartesian_topology_partition([P_y.size, P_x.size])
    return dnn.DistributedLinear(P_x, P_y, P_w, 4, 3), torch.nn.Linear(4, 3), [2, 4], P_x, P_y


def channels(P_world, ranks_x, ranks_y):
    P_x, P_y = (on(P_world, ranks[:1], 3) for ranks in (ranks_x, ranks_y))
    P_w = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1, 1])
    return dnn.DistributedChannelConv1d(P_x, P_y, P_w, 2, 3, 3), torch.nn.Conv1d(2, 3, 3), [2, 2, 7], P_x, P_y


def alone(make, twin, shape):
    """A layer with one partition."""

    def of(P_world, ranks_x, ranks_y):
        P_x = on(P_world, ranks_x, len(shape))
        return make(P_x), twin(), shape, P_x, P_x

    return of


LAYERS = {
    "linear": linear,
    "channels": channels,
    "feature": alone(lambda P: dnn.DistributedConv1d(P, 2, 3, 3), lambda: torch.nn.Conv1d(2, 3, 3), [2, 2, 7]),
    "transposed": alone(
        lambda P: dnn.DistributedFeatureConvTranspose1d(P, 2, 3, 3),
        lambda: torch.nn.ConvTranspose1d(2, 3, 3),
        [2, 2, 7],
    ),
    "pooling": alone(lambda P: dnn.DistributedMaxPool1d(P, 2), lambda: torch.nn.MaxPool1d(2, 1), [2, 2, 7]),
    "upsampling": alone(
        lambda P: dnn.DistributedUpsample(P, scale_factor=2),
        lambda: torch.nn.Upsample(scale_factor=2, mode="linear"),
        [2, 2, 7],
    ),
    "batch norm": alone(lambda P: dnn.DistributedBatchNorm(P, 2), lambda: torch.nn.BatchNorm1d(2), [2, 2, 7]),
    "layer norm": alone(lambda P: dnn.DistributedLayerNorm(P, 4), lambda: torch.nn.LayerNorm(4), [2, 4]),
    "layer norm zero": alone(lambda P: dnn.DistributedLayerNormZero(P, 4), lambda: torch.nn.LayerNorm(4), [2, 4]),
    "rms norm": alone(lambda P: dnn.DistributedRMSNormZero(P, 4), lambda: torch.nn.RMSNorm(4, 1e-5), [2, 4]),
    "all-gather": alone(lambda P: dnn.DistributedLinearAllGather(P, 4, 3), lambda: torch.nn.Linear(4, 3), [2, 4]),
    "all-gather zero": alone(
        lambda P: dnn.DistributedLinearAllGatherZero(P, 4, 3), lambda: torch.nn.Linear(4, 3), [2, 4]
    ),
    "reduce-scatter": alone(
        lambda P: dnn.DistributedLinearReduceScatter(P, 4, 3), lambda: torch.nn.Linear(4, 3), [2, 4]
    ),
}
PLACES = {"both": ([0, 1], [0, 1]), "x first": ([0], [-1]), "y first": ([-1], [0]), "elsewhere": ([1], [1])}


@pytest.mark.parametrize("kept", [False, True], ids=["no batch", "batch"])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", LAYERS)
@on_all_ranks
def test_ranks_outside(P_world, name, places, kept):
    """They have no parameters, results are zero-volume tensors, and the numbers are those of the sequential layer."""
    layer, twin, shape, P_x, P_y = LAYERS[name](P_world, *places)
    workers = [layout.grid.active for layout in layer.layouts.values()]
    if workers and not any(workers):
        assert list(layer.parameters()) == []
        assert list(torch.nn.Sequential(layer).parameters()) == []
    if list(twin.parameters()):
        distdl.load_sequential(layer, fill_with_integers(twin).state_dict())
    layer.double()
    twin.double()
    x = values(shape)
    whole = x.clone().requires_grad_()
    mine = block_of(x, P_x) if P_x.active else distdl.zero_volume_tensor(shape[0] if kept else None, x.dtype)
    mine.requires_grad_()
    y, expected = layer(mine), twin(whole)
    if not P_y.active:
        assert y.shape == ((shape[0], 0) if kept or P_x.active or any(workers) else (0,))
    assert torch.allclose(assemble(y, P_y, expected.shape), expected)
    y.backward(torch.ones_like(y))
    expected.sum().backward()
    assert torch.allclose(assemble(mine.grad, P_x, x.shape), whole.grad)


@pytest.mark.parametrize("name", ["linear", "channels", "batch norm", "layer norm zero"])
@on_all_ranks
def test_states_of_ranks_outside(P_world, name):
    """A rank without parameters ignores those of a file, and takes part in states of the whole model."""
    layer, twin, *_ = LAYERS[name](P_world, [0], [0])
    layer.load_state_dict(fill_with_integers(twin).state_dict())
    found = distdl.sequential_state_dict(layer)
    assert all(torch.equal(found[key], one) for key, one in twin.state_dict().items() if found)
    assert bool(found) == (job.rank == 0)
    assert bool(list(layer.parameters())) == (job.rank == 0)


def test_functions_that_take_a_model(P_world):
    """They count parameters and gradients of all ranks, on ranks that have none."""
    layer, twin, shape, P_x, _ = LAYERS["linear"](P_world, [0], [0])
    distdl.load_sequential(layer, fill_with_integers(twin).state_dict())
    layer(block_of(torch.ones(shape), P_x)).sum().backward()
    twin(torch.ones(shape)).sum().backward()
    assert distdl.parameter_count(layer) == sum(one.numel() for one in twin.parameters())
    norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    assert torch.allclose(distdl.clip_grad_norm_(layer, 1.0), norm)
    gradients = distdl.sequential_gradients(layer)
    assert all(torch.allclose(gradients[name], one.grad) for name, one in twin.named_parameters() if job.rank == 0)
