"""Forward-mode derivatives: the derivative of A x is A applied to the derivative of x, also within backward passes."""

import pytest
import torch
from torch.autograd import forward_ad

import distdl.nn as dnn
from support.blocks import grid
from support.cases import CASES
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values

# Of torch's own modules, which it imports at the first dual tensor.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

HALVES = {"at once": lambda layer, x: layer(x), "in halves": lambda layer, x: layer.wait(layer.start(x))}


@pytest.fixture(autouse=True)
def _dual_level():
    with forward_ad.dual_level():
        yield


@pytest.fixture(params=HALVES.values(), ids=HALVES)
def call(request):
    return request.param


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_forward_mode(P_world, make, call):
    case = make(P_world)
    x, t = values(case.shape, seed=job.rank), values(case.shape, seed=100 + job.rank)
    y, ty = forward_ad.unpack_dual(call(case.operator, forward_ad.make_dual(x, t)))
    assert same_bits(y, case.operator(x))
    assert same_bits(ty, case.operator(t))
    assert forward_ad.unpack_dual(call(case.operator, x)).tangent is None


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_only_one_rank_has_a_derivative(P_world, make, call):
    """It counts as 0 on the others, which take part."""
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    has_derivative = job.rank == job.size - 1
    t = values(case.shape, seed=7) if has_derivative else torch.zeros_like(x)
    _, ty = forward_ad.unpack_dual(call(case.operator, forward_ad.make_dual(x, t) if has_derivative else x))
    if case.operator._operator.active or has_derivative:
        assert same_bits(ty, case.operator(t))
    else:
        assert ty is None


@pytest.mark.shared
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_forward_over_reverse_and_reverse_over_forward(P_world, make, call):
    """Of f(x) = sum(w y^2), the Hessian times v is 2 A* (w A v), in both ways."""
    case = make(P_world)
    A = case.operator._operator
    x, v = values(case.shape, seed=job.rank), values(case.shape, seed=100 + job.rank)
    w = values(case.operator(x).shape, seed=200 + job.rank)
    expected = A.adjoint(x, 2 * w * case.operator(v))

    dual = forward_ad.make_dual(x.clone().requires_grad_(), v)
    (gradient,) = torch.autograd.grad((w * call(case.operator, dual).square()).sum(), dual)
    assert same_bits(forward_ad.unpack_dual(gradient).tangent, expected)

    leaf = x.clone().requires_grad_()
    _, slope = forward_ad.unpack_dual((w * call(case.operator, forward_ad.make_dual(leaf, v)).square()).sum())
    (gradient,) = torch.autograd.grad(slope, leaf)
    assert same_bits(gradient, expected)


def test_what_is_filled_in_has_no_derivative(P_world):
    layer = dnn.HaloExchange(grid(P_world, [job.size]), 1, fill_value=5.0)
    x = values([3], seed=job.rank)
    y, ty = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones_like(x))))
    assert same_bits(y, layer(x))
    outside = torch.tensor([job.rank == 0, False, False, False, job.rank == job.size - 1])
    assert bool((y[outside] == 5).all())
    assert same_bits(ty, torch.where(outside, 0.0, 1.0).double())


def test_the_mistake_of_one_rank(P_world):
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = torch.ones(4 if job.rank == job.size - 1 and job.size > 1 else 3)
    dual = forward_ad.make_dual(x, x)
    if job.size > 1:
        raises_everywhere(ValueError, "their shapes must be equal", lambda: layer(dual))
    assert bool((layer(torch.ones(1)) == job.size).all())
