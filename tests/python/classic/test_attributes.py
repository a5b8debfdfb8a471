"""Attributes that programs written for DistDL read from layers, primitives and modules."""

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, on_all_ranks, together
from support.tensors import values

pytestmark = pytest.mark.ranks(1, 2, 3)


def line(P_world, dim=2):
    return grid(P_world, [*[1] * (dim - 1), job.size])


def columns(P_world, **options):
    """A linear layer whose columns are on all ranks: rank 0 has the bias."""
    P_x = line(P_world)
    return dnn.DistributedLinear(P_x, grid(P_world, [1, 1]), P_x, 7, 5, **options)


WITH_BIAS = {
    "linear": columns,
    "feature": lambda P, **options: dnn.DistributedConv1d(line(P, 3), 2, 3, 3, **options),
    "transposed": lambda P, **options: dnn.DistributedFeatureConvTranspose1d(line(P, 3), 2, 3, 3, **options),
    "all-gather": lambda P, **options: dnn.DistributedLinearAllGather(line(P), 4, 6, **options),
    "all-gather zero": lambda P, **options: dnn.DistributedLinearAllGatherZero(line(P), 4, 6, **options),
    "reduce-scatter": lambda P, **options: dnn.DistributedLinearReduceScatter(line(P), 4, 6, **options),
    "reduce-scatter zero": lambda P, **options: dnn.DistributedLinearReduceScatterZero(line(P), 4, 6, **options),
    "experts": lambda P, **options: dnn.DistributedExpertAllGather(line(P, 3), 2, 4, 6, **options),
    "experts' sums": lambda P, **options: dnn.DistributedExpertReduceScatter(line(P, 3), 2, 4, 6, **options),
    "rms norm": lambda P, **options: dnn.DistributedRMSNormZero(line(P), 6, **options),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", WITH_BIAS)
@on_all_ranks
def test_where_parameters_live(P_world, name, bias):
    """A rank is in a partition where it has blocks, and they are together what the layer has."""
    layer = WITH_BIAS[name](P_world, bias=bias)
    assert layer.use_bias is bias
    has_weight, has_bias = (one is not None and one.numel() > 0 for one in (layer.weight, layer.bias))
    assert layer.stores_bias is has_bias
    assert layer.P_weight == layer.P_store_weight
    assert layer.P_bias == layer.P_store_bias
    assert layer.P_weight.active >= has_weight
    assert layer.P_store_bias.active >= has_bias
    assert any(together(layer.P_store_bias.active)) is bias
    assert layer.P_apply_weight.active  # all ranks compute
    assert any(together(layer.P_apply_bias.active)) is bias
    assert isinstance(layer.P_weight, type(layer.P_x))


def test_the_bias_of_one_column(P_world):
    layer = columns(P_world)
    assert layer.P_store_bias.active == layer.P_apply_bias.active == (job.rank == 0)
    assert layer.P_weight.size == job.size


def test_no_bias_in_embeddings(P_world):
    assert dnn.DistributedEmbedding(line(P_world, 3), 5, 4).use_bias is False


@pytest.mark.parametrize(
    ("make", "dim"),
    [(lambda P: dnn.DistributedBatchNorm(P, 4), 3), (lambda P: dnn.DistributedLayerNorm(P, 4), 2)],
    ids=["batch", "layer"],
)
@on_all_ranks
def test_broadcast_of_normalizations(P_world, make, dim):
    """From where a parameter lives to all workers that use it; its adjoint sums there."""
    P_x = grid(P_world, [job.size, *[1] * (dim - 1)])
    layer = make(P_x)
    weight = values([4]) if layer.P_weight.active else distdl.zero_volume_tensor(dtype=torch.float64)
    weight.requires_grad_()
    used = layer.broadcast(weight)
    assert torch.equal(used, values([4]))
    used.sum().backward()
    assert torch.equal(weight.grad, torch.full_like(weight, job.size))


@on_all_ranks
def test_buffers_of_halo_layers(P_world):
    """They manage buffers by the manager that they were given, or by one of their own."""
    from distdl.backends.mpi.buffer import MPIBufferManager

    P_x, manager = line(P_world, 3), MPIBufferManager()
    makes = (
        lambda **more: dnn.DistributedConv1d(P_x, 2, 2, 3, **more),
        lambda **more: dnn.DistributedGeneralConv1d(P_x, P_x, line(P_world, 4), 2, 2, 3, **more),
        lambda **more: dnn.DistributedMaxPool1d(P_x, 2, **more),
        lambda **more: dnn.DistributedUpsample(P_x, scale_factor=2, **more),
        lambda **more: dnn.Repartition(P_x, P_x, **more),
        lambda **more: dnn.HaloExchange(P_x, 0, 0, 0, **more),
    )
    for make in makes:
        assert make(buffer_manager=manager).buffer_manager is manager
        assert isinstance(make().buffer_manager, MPIBufferManager)
    widths = [[[0, 0]] * 3 for _ in range(3)]
    exchange = dnn.HaloExchange(P_x, *widths)
    assert [exchange.halo_shape, exchange.recv_buffer_shape, exchange.send_buffer_shape] == widths
    assert exchange.P_x == P_x


ABSENT = {
    "halo_layer": (lambda P: dnn.DistributedConv1d(P, 2, 2, 3), "HaloExchange"),
    "halo_shape": (lambda P: dnn.DistributedMaxPool1d(P, 2), "HaloExchange"),
    "in_buffers": (lambda P: dnn.HaloExchange(P, 1), "leave this line out"),
    "w_broadcast": (lambda P: dnn.DistributedConv1d(P, 2, 2, 3), "parameters_in_use"),
    "broadcast": (lambda P: dnn.DistributedLayerNormZero(P, 4), "parameters_in_use"),
    "sum_reduce": (lambda P: dnn.DistributedBatchNorm(P, 4), "AllSumReduce"),
}


@pytest.mark.parametrize("name", ABSENT)
def test_what_to_write_today(P_world, name):
    make, says = ABSENT[name]
    with pytest.raises(AttributeError, match=f"'{name}': .*{says}"):
        getattr(make(line(P_world, 3)), name)


def test_other_attributes_are_unknown(P_world):
    with pytest.raises(AttributeError, match="'DistributedMaxPool1d' object has no attribute 'anything'"):
        dnn.DistributedMaxPool1d(line(P_world, 3), 2).anything  # noqa: B018


def test_the_module_of_the_backend(P_world):
    assert distdl.backends.backend.Partition is type(P_world)
