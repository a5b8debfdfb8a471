"""The transforms of torch.func through every operator."""

import copy

import pytest
import torch

import distdl.nn as dnn
from support.blocks import block_of, grid
from support.cases import CASES
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values

# Warnings of modules that torch imports at the first transform.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script", "ignore:.*:DeprecationWarning:torch")


@pytest.mark.shared
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_grad_and_jvp(P_world, make):
    case = make(P_world)
    adjoint = case.operator._operator.adjoint
    x, v = values(case.shape, seed=job.rank), values(case.shape, seed=100 + job.rank)
    w = values(case.operator(x).shape, seed=200 + job.rank)

    def f(x):
        return (w * case.operator(x).square()).sum()

    y, ty = torch.func.jvp(case.operator, (x,), (v,))
    assert same_bits(y, case.operator(x))
    assert same_bits(ty, case.operator(v))
    assert same_bits(torch.func.grad(f)(x), adjoint(x, 2 * w * case.operator(x)))
    hessian_times_v = adjoint(x, 2 * w * case.operator(v))
    assert same_bits(torch.func.jvp(torch.func.grad(f), (x,), (v,))[1], hessian_times_v)
    assert same_bits(torch.func.grad(lambda x: (torch.func.grad(f)(x) * v).sum())(x), hessian_times_v)


@pytest.mark.shared
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dim", [0, -1])
def test_vmap(P_world, make, dim):
    """The values and gradients of a batch are those of its samples, one after another."""
    case = make(P_world)
    batch = [values(case.shape, seed=10 * i + job.rank) for i in range(3)]
    x = torch.stack(batch, dim)
    y = torch.func.vmap(case.operator, in_dims=dim)(x)
    for part, sample in zip(y.unbind(0), batch, strict=True):
        assert same_bits(part, case.operator(sample).reshape(part.shape))

    def f(x):
        return case.operator(x).square().sum()

    gradients = torch.func.vmap(torch.func.grad(f), in_dims=dim)(x)
    for part, sample in zip(gradients.unbind(0), batch, strict=True):
        assert same_bits(part, torch.func.grad(f)(sample))


@pytest.mark.parametrize("jacobian", [torch.func.jacfwd, torch.func.jacrev])
def test_jacobians(P_world, jacobian):
    """All ranks vary, or differentiate, the same element at once, which the sum has once for each rank."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    assert same_bits(jacobian(layer)(values([3], seed=job.rank)), job.size * torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize(
    "name",
    ["sum_reduce_rows", "all_gather_rows", "reduce_scatter_columns", "repartition_all_to_all", "halo_periodic"],
)
def test_vmap_in_vmap(P_world, name):
    """The operator is applied along two further dimensions."""
    case = CASES[name](P_world)
    x = values((2, 3, *case.shape), seed=job.rank)
    y = torch.func.vmap(torch.func.vmap(case.operator, in_dims=-1, out_dims=-1))(x.movedim(1, -1))
    for i in range(2):
        for j in range(3):
            part = y[i][..., j]
            assert same_bits(part, case.operator(x[i, j]).reshape(part.shape))


def test_hessian(P_world):
    """With y = A x, the Hessian of sum(y^3) is A* diag(6 y) A. torch computes it forward over reverse, under vmap."""
    layer = dnn.HaloExchange(grid(P_world, [job.size]), 1, periodic=True)
    x = values([2], seed=job.rank)
    hessian = torch.func.hessian(lambda x: layer(x).pow(3).sum())(x)
    for column, direction in zip(hessian.unbind(1), torch.eye(2, dtype=x.dtype), strict=True):
        assert same_bits(column, layer._operator.adjoint(x, 6 * layer(x) * layer(direction)))


ACROSS_BLOCKS = {
    "softmax": torch.nn.Softmax(1),
    "log_softmax": torch.nn.LogSoftmax(1),
    "softmin": torch.nn.Softmin(1),
    "batch_norm": torch.nn.BatchNorm1d(4, track_running_stats=False),
    "instance_norm": torch.nn.InstanceNorm1d(4, affine=True),
    "group_norm": torch.nn.GroupNorm(1, 4),
    "layer_norm": torch.nn.LayerNorm((4, 6)),
    "rms_norm": torch.nn.RMSNorm((4, 6)),
    "response_norm": torch.nn.LocalResponseNorm(3),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("twin", ACROSS_BLOCKS.values(), ids=ACROSS_BLOCKS)
def test_layers(P_world, twin):
    """A transform on any rank is refused on all, and calls work afterwards; forward derivatives equal the twin's."""
    workers = (1, 1, job.size) if isinstance(twin, torch.nn.InstanceNorm1d) else (1, job.size, 1)
    twin = copy.deepcopy(twin).double()
    x, v = (torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(2))
    P_x = grid(P_world, workers)
    layer, part, direction = dnn.SEQUENTIAL[type(twin)].from_sequential(twin, P_x), block_of(x, P_x), block_of(v, P_x)
    transforms = (
        lambda: torch.func.grad(lambda x: layer(x).sum())(part),
        lambda: torch.func.jvp(layer, (part,), (direction,)),
        lambda: torch.func.vmap(layer)(part[None]),
    )
    for transform in transforms:
        for is_transformed_here in (True, job.rank == 0):
            call = transform if is_transformed_here else lambda: layer(part)
            raises_everywhere(TypeError, "torch.func", call, seconds=10.0)
    _, expected = torch.func.jvp(twin, (x,), (v,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(part, direction)
        _, tangent = torch.autograd.forward_ad.unpack_dual(layer(dual))
        torch.testing.assert_close(tangent, block_of(expected, P_x))
