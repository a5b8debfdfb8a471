"""Where programs written for DistDL mean something else than users of torch.nn, without an error that would say so."""

import numpy as np
import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import assemble, block_of, grid
from support.ranks import job, raises_everywhere, together
from support.tensors import fill_with_integers, values

pytestmark = pytest.mark.ranks(1, 3)


def space(P_world, dims=2):
    return grid(P_world, [1, 1, *[1] * (dims - 1), job.size])


def result(layer, x, P_x, shape):
    return assemble(layer(block_of(x, P_x)), P_x, shape)


@pytest.mark.parametrize("kind", ["Max", "Avg"])
def test_the_stride_of_pooling_is_1(P_world, kind):
    P_x, x = space(P_world), values([1, 2, 6, 9])
    expected = getattr(torch.nn, f"{kind}Pool2d")(3, stride=1)(x)
    assert torch.equal(result(getattr(dnn, f"Distributed{kind}Pool2d")(P_x, 3), x, P_x, expected.shape), expected)


def test_the_fifth_position_of_average_pooling_is_dilation(P_world):
    """Not ceil_mode, which would add a window at the end."""
    P_x, x = space(P_world), values([1, 2, 6, 9])
    expected = torch.nn.AvgPool2d(2, 2)(x)
    for dilation in (1, (1, 1), [1, 1], np.array([1, 1])):
        layer = dnn.DistributedAvgPool2d(P_x, 2, 2, 0, dilation)
        assert torch.equal(result(layer, x, P_x, expected.shape), expected)
    raises_everywhere(ValueError, "dilation=2", lambda: dnn.DistributedAvgPool2d(P_x, 2, 2, 0, 2))
    expected = torch.nn.MaxPool2d(2, 2, 0, 2)(x)
    assert torch.equal(result(dnn.DistributedMaxPool2d(P_x, 2, 2, 0, 2), x, P_x, expected.shape), expected)


@pytest.mark.parametrize(("dims", "mode"), [(1, "linear"), (2, "bilinear"), (3, "trilinear")])
def test_upsampling_is_linear(P_world, dims, mode):
    P_x, x = space(P_world, dims), values([1, 2, *[5] * dims])
    expected = torch.nn.Upsample(scale_factor=2, mode=mode, align_corners=False)(x)
    for layer in (
        dnn.DistributedUpsample(P_x, scale_factor=2),
        dnn.DistributedUpsample(P_x, None, tuple(expected.shape), None, "linear", False),
        dnn.DistributedUpsample(P_x, size=expected.shape[2:]),
        dnn.DistributedUpsample(P_x, size=np.array(expected.shape)),
    ):
        assert torch.allclose(result(layer, x, P_x, expected.shape), expected)
    corners = torch.nn.Upsample(scale_factor=2, mode=mode, align_corners=True)(x)
    layer = dnn.DistributedUpsample(P_x, scale_factor=2, align_corners=True)
    assert torch.allclose(result(layer, x, P_x, expected.shape), corners)
    nearest = torch.nn.Upsample(scale_factor=2)(x)
    layer = dnn.DistributedUpsample(P_x, scale_factor=2, mode="nearest", align_corners=False)
    assert torch.equal(result(layer, x, P_x, expected.shape), nearest)


def test_the_class_of_a_convolution(P_world):
    """By the partitions; a program initialises by isinstance."""
    ones = (1, 1)
    P_x, P_1, P_n = space(P_world), grid(P_world, [1, 1, *ones]), grid(P_world, [1, job.size, *ones])
    P_w = grid(P_world, [1, job.size, 1, *ones])
    feature = dnn.DistributedConv2d(P_x, 2, 4, 3)
    channel = dnn.DistributedConv2d(P_1, P_n, P_w, 2, 4, 3)
    assert isinstance(feature, dnn.DistributedFeatureConv2d)
    assert isinstance(feature, dnn.DistributedConv2d)
    assert not isinstance(feature, dnn.DistributedChannelConv2d)
    assert isinstance(channel, dnn.DistributedChannelConv2d)
    assert isinstance(channel, dnn.DistributedConv2d)
    assert not isinstance(channel, dnn.DistributedGeneralConv2d)
    assert not isinstance(feature, dnn.DistributedConv3d)
    if job.size > 1:
        general = dnn.DistributedConv2d(P_x, P_x, grid(P_world, [1, 1, 1, 1, job.size]), 2, 4, 3)
        assert isinstance(general, dnn.DistributedGeneralConv2d)
    unset = dnn.DistributedConv2d(P_x, None, None, None, 2, 4, 3, bias=False)
    assert isinstance(unset, dnn.DistributedFeatureConv2d)
    assert unset.bias is None

    class Mine(dnn.DistributedFeatureConv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    mine = Mine(P_x, 2, 4, 3)
    mine.load_state_dict(feature.state_dict())
    x = block_of(values([1, 2, 5, 7], torch.float32), P_x)
    assert torch.equal(mine(x), 2 * feature(x))


@pytest.mark.parametrize("missing", ["P_y", "P_w"])
@pytest.mark.parametrize("mode", ["classic", "ours"])
def test_one_partition_of_two(request, missing, mode):
    P = request.getfixturevalue("P_world") if mode == "classic" else distdl.Partition()
    P_x = P.create_cartesian_topology_partition([1, 1, 1, job.size])
    given = {"P_y": P_x, "P_w": P_x}
    del given[missing]
    call = lambda: dnn.DistributedConv2d(P_x, in_channels=1, out_channels=2, kernel_size=3, **given)  # noqa: E731
    raises_everywhere(ValueError, f"{missing} is not given", call)
    if missing == "P_w":
        raises_everywhere(ValueError, "P_w is not given", lambda: dnn.DistributedConv2d(P_x, P_x, 1, 2, 3))


def test_partitions(P_world):
    assert not distdl.MPIPartition().active
    assert not distdl.backends.mpi.partition.MPIPartition().active
    assert P_world.index == job.rank
    assert isinstance(P_world.index, int)
    assert P_world.create_partition_inclusive(range(job.size)).index == job.rank
    assert P_world.create_cartesian_topology_partition([job.size]).index.tolist() == [job.rank]
    layer = dnn.DistributedBatchNorm(P_world.create_cartesian_topology_partition([job.size, 1]), 2)
    assert layer.P_x._group.Get_size() == job.size


def test_the_value_of_a_loss(P_world):
    """On the first worker; every rank calls backward()."""
    P_x = grid(P_world, [1, 1, 1, job.size])
    x, target = values([2, 1, 3, 5], torch.float32), values([2, 1, 3, 5], torch.float32, seed=3)
    whole, mine = x.clone().requires_grad_(), block_of(x, P_x).requires_grad_()
    expected = torch.nn.functional.mse_loss(whole, target)
    loss = dnn.DistributedMSELoss(P_x)(mine, block_of(target, P_x))
    everyone = together(float(loss.detach()))
    assert everyone == [float(expected.detach())] + [0.0] * (job.size - 1)
    loss.backward()
    expected.backward()
    assert torch.equal(assemble(mine.grad, P_x, x.shape), whole.grad)


def test_zero_volume_tensors(P_world):
    for make in (distdl.zero_volume_tensor, distdl.utilities.torch.zero_volume_tensor):
        assert make().shape == (0,)
        assert make(3).shape == make(b=3).shape == (3, 0)
        assert make(3, torch.float64, True, torch.device("cpu")).requires_grad
        assert make(3, True).requires_grad  # the descendant's order
        assert make(3, torch.int64, torch.device("cpu"), False).dtype == torch.int64  # this library's
        assert make(batch=3, dtype=torch.int64).shape == (3, 0)


def test_buffer_managers_are_left_alone(P_world):
    from distdl.backends.mpi.buffer import MPIBufferManager

    P_x, manager = space(P_world), MPIBufferManager()
    x = values([1, 2, 5, 9])
    layers = [
        dnn.DistributedConv2d(P_x, 2, 2, 3, buffer_manager=manager, dtype=x.dtype),
        dnn.DistributedFeatureConvTranspose2d(P_x, 2, 2, 3, buffer_manager=manager, dtype=x.dtype),
        dnn.DistributedMaxPool2d(P_x, 2, buffer_manager=manager),
        dnn.DistributedUpsample(P_x, manager, scale_factor=2),
        dnn.Repartition(P_x, P_x, buffer_manager=manager),
        dnn.HaloExchange(P_x, 0, 0, 0, buffer_manager=manager),
    ]
    for layer in layers:
        layer(block_of(x, P_x))
    assert manager.request_buffers(1)[0].capacity == 0


def test_running_variance_is_unbiased(P_world):
    """The right number wins."""
    P_x, x = grid(P_world, [job.size, 1]), values([5, 3])
    layer, twin = dnn.DistributedBatchNorm(P_x, 3, dtype=x.dtype), torch.nn.BatchNorm1d(3, dtype=x.dtype)
    twin(x)
    layer(block_of(x, P_x))
    assert torch.allclose(layer.running_var, twin.running_var)


def test_gradients_are_divided(P_world):
    """By the extents of P_x that scale_backward names."""
    P_x = grid(P_world, [job.size, 1])
    x = values([5, 3])
    for scale, divisor in (
        (None, 1),
        (True, job.size),
        (0, job.size),
        (slice(0, 2), job.size),
        (1, 1),
        ((0, 1), job.size),
    ):
        layer = dnn.DistributedLinearAllGather(P_x, 3, 2, scale_backward=scale, dtype=x.dtype)
        twin = fill_with_integers(torch.nn.Linear(3, 2, dtype=x.dtype))
        distdl.load_sequential(layer, twin.state_dict())
        twin(x).sum().backward()
        layer(block_of(x, P_x)).sum().backward()
        if job.rank == 0:
            assert torch.allclose(layer.weight.grad, twin.weight.grad / divisor)


def manager():
    from distdl.backends.mpi.buffer import MPIBufferManager

    return MPIBufferManager()


WRONG_WITHOUT_IT = {
    "buffer manager": (lambda P: dnn.DistributedConv2d(P, 1, 2, 3, buffer_manager=None), TypeError),
    "of an operator": (lambda P: dnn.Repartition(P, P, buffer_manager=None), TypeError),
    "padding mode": (lambda P: dnn.DistributedConv2d(P, 1, 2, 3, 1, 0, "zeros", 1, 1, True), TypeError),
    "unset": (lambda P: dnn.DistributedConv2d(P, None, None, None, 1, 2, 3), TypeError),
    "P_w": (lambda P: dnn.DistributedLinear(P, P, P_w=P, in_features=1, out_features=1), TypeError),
    "dilation": (lambda P: dnn.DistributedAvgPool2d(P, 2, dilation=1), TypeError),
    "linear": (lambda P: dnn.DistributedUpsample(P, scale_factor=2, mode="linear"), NotImplementedError),
    "whole shape": (lambda P: dnn.DistributedUpsample(P, None, (1, 2, 4, 4)), ValueError),
    "manager and size": (lambda P: dnn.DistributedUpsample(P, None, None, 2), ValueError),
    "eps": (lambda P: dnn.DistributedLayerNorm(P, 2, True, 1e-5), TypeError),
    "reduction": (lambda P: dnn.DistributedBCELoss(P, "sum"), TypeError),
    "reduction of Poisson": (lambda P: dnn.DistributedPoissonNLLLoss(P, "sum"), TypeError),
    "position of dilation": (lambda P: dnn.DistributedAvgPool2d(P, 2, 2, 0, 1), TypeError),
    "position of manager": (lambda P: dnn.DistributedMaxPool2d(P, 2, 2, 0, 1, manager()), TypeError),
    "manager of upsampling": (lambda P: dnn.DistributedUpsample(P, manager(), scale_factor=2), ValueError),
    "manager and unset": (lambda P: dnn.DistributedConv2d(P, None, None, manager(), 1, 2, 3), TypeError),
    "corners": (lambda P: dnn.DistributedUpsample(P, None, 2, "nearest", False), ValueError),
    "shape in an array": (lambda P: dnn.DistributedUpsample(P, np.array([1, 2, 4, 4])), TypeError),
    "fourth of an operator": (lambda P: dnn.Repartition(P, P, True, None), TypeError),
    "fifth of an operator": (lambda P: dnn.HaloExchange(P, 0, 0, 0, manager()), TypeError),
    "heads": (lambda P: dnn.DistributedLinearAllGather(P, 4, 12, num_heads=4), TypeError),
    "collected": (lambda P: dnn.DistributedBatchNorm(P, 2, collect_state=True), TypeError),
}


@pytest.mark.parametrize(("call", "kind"), WRONG_WITHOUT_IT.values(), ids=WRONG_WITHOUT_IT)
def test_errors_name_the_command_without_classic_mode(call, kind):
    P = distdl.Partition().create_cartesian_topology_partition([1, 1, 1, job.size])
    raises_everywhere(kind, "python -m distdl.classic", lambda: call(P))


@pytest.mark.parametrize(
    "name",
    ["DistributedLinearAllGather", "DistributedRMSNormZero", "DistributedEmbedding", "DistributedExpertReduceScatter"],
)
def test_mistakes_of_one_rank(P_world, name):
    """Raise on all ranks."""
    P = grid(P_world, [1, 1, job.size])
    sizes = {"DistributedRMSNormZero": (4,), "DistributedExpertReduceScatter": (2, 4, 4)}.get(name, (4, 4))
    for wrong in ({"other": 1}, {"collect_state": job.size > 1}):
        mine = wrong if job.rank == job.size - 1 else {}
        if any(wrong.values()):
            call = lambda mine=mine: getattr(dnn, name)(P, *sizes, **mine)  # noqa: E731
            raises_everywhere((TypeError, ValueError), "other|ask for different things", call, seconds=5.0)


OF_ONE_RANK = {
    "heads": (lambda P, wrong: dnn.DistributedLinearAllGather(P, 4, 6 * job.size, geglu=wrong), "geglu=True"),
    "input": (
        lambda P, wrong: dnn.DistributedLinearAllGather(P, 4, 4, P_x=P.first if wrong else None),
        "another partition",
    ),
    "result": (
        lambda P, wrong: dnn.DistributedLinearReduceScatter(P, 4, 4, P_y=None if wrong else P.first),
        "another partition",
    ),
    "table": (
        lambda P, wrong: dnn.DistributedEmbedding(P, 5, 4, _weight=torch.ones(4 if wrong else 5, 4)),
        "it must be .5, 4.",
    ),
    "frozen": (lambda P, wrong: dnn.DistributedEmbedding(P, 5, 4, _freeze=wrong), "_freeze=True"),
    "divisor": (
        lambda P, wrong: dnn.DistributedLayerNorm(P, 4, scale_backward=(7,) if wrong else None),
        "scale_backward=.7",
    ),
    "structure": (
        lambda P, wrong: distdl.backends.mpi.tensor_comm.assemble_global_tensor_structure(
            None if wrong else distdl.TensorStructure(torch.ones(2, 2, 2)), P
        ),
        "assemble_global_tensor_structure: AttributeError: 'NoneType'",
    ),
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("call", "says"), OF_ONE_RANK.values(), ids=OF_ONE_RANK)
def test_what_one_rank_asks_for(P_world, call, says):
    """It raises on all ranks: none waits for an exchange that another one does not know of."""
    P = grid(P_world, [1, 1, job.size])
    P.first = grid(P_world, [1, 1, 1])
    wrong = job.rank == job.size - 1
    raises_everywhere((ValueError, RuntimeError), says, lambda: call(P, wrong), seconds=5.0)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("of", ["P_x", "P_y"])
def test_repartition_refuses_workers_without_a_part(P_world, of):
    """A rank of one of the partitions alone raises it as well. As many elements as workers are enough."""
    few, many = grid(P_world, [1, 1]), grid(P_world, [1, job.size])
    P_x, P_y = (many, few) if of == "P_x" else (few, many)
    layer = dnn.Repartition(P_x, P_y)
    x = values([2, job.size])
    assert torch.equal(assemble(layer(block_of(x, P_x)), P_y, x.shape), x)
    too_small = block_of(values([2, job.size - 1]), P_x)
    raises_everywhere(ValueError, f"does not divide over {of} of shape", lambda: layer(too_small))
    assert torch.equal(assemble(layer(block_of(x, P_x)), P_y, x.shape), x)
