"""torch.compile through every operator: one graph, and the bits of a call."""

import gc

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.cases import CASES
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values

pytestmark = [
    # Of torch's own modules, which it imports when it compiles: that takes seconds in each job.
    pytest.mark.filterwarnings("ignore:`torch.jit.script", "ignore:.*:DeprecationWarning:torch"),
    pytest.mark.ranks(2, 3),
    pytest.mark.usefixtures("fresh_compiler"),
]


def first_derivatives(function, x, weight):
    x = x.clone().requires_grad_()
    y = function(x)
    (gradient,) = torch.autograd.grad((y.square() * weight.reshape(y.shape)).sum(), x)
    return y, gradient


@pytest.mark.shared
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_in_one_graph(P_world, make):
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    weight = values(case.operator(x).shape, seed=100 + job.rank)
    compiled = torch.compile(make(P_world).operator, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert same_bits(compiled(x), case.operator(x))
    expected = first_derivatives(case.operator, x, weight)
    for _ in range(2):
        assert all(same_bits(a, b) for a, b in zip(first_derivatives(compiled, x, weight), expected, strict=True))


@pytest.mark.turns(3)
@pytest.mark.ranks(2)
def test_a_whole_function_with_the_default_compiler(P_world):
    """Sums, moves and halves among torch's own operators, forward and backward."""
    P_x, P_0 = grid(P_world, [1, job.size]), grid(P_world, [1, 1])
    halo, gather = dnn.HaloExchange(P_x, [0, 1], fill_value=2.0), dnn.Repartition(P_x, P_0)
    total, share = dnn.AllSumReduce(P_x, [1]), dnn.Broadcast(P_0, P_x)

    def function(x):
        started = total.start(x.sin())
        grown = halo(x).square()
        y = grown[:, 1:-1] + total.wait(started)
        return share(gather(y * 2).cos())

    x = values([3, 4], seed=job.rank)
    weight = values(function(x).shape, seed=100 + job.rank)
    expected = first_derivatives(function, x, weight)
    compiled = first_derivatives(torch.compile(function, fullgraph=True), x, weight)
    for a, b in zip(compiled, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-14, atol=1e-14)  # sin and cos of another vector library


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # opcheck reads it in torch 2.14
@pytest.mark.shared
@pytest.mark.parametrize("name", ["sum_reduce_rows", "all_gather_rows", "repartition_all_to_all", "halo_wide"])
def test_dispatcher_operators(P_world, name):
    case = CASES[name](P_world)
    operator = case.operator._operator
    x = values(case.shape, seed=job.rank).requires_grad_()
    if not operator.active:
        return
    torch.library.opcheck(torch.ops.distdl.apply.default, (x, operator._key, False, True))
    y = operator(x).detach().requires_grad_()
    torch.library.opcheck(torch.ops.distdl.apply_adjoint.default, (y, operator._key, list(x.shape)))


def test_new_shapes(P_world):
    """On all ranks they are compiled again."""
    layer = dnn.AllGather(grid(P_world, [job.size]), [0])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for n in (2, 5, 2, 3):
        x = values([n + job.rank], seed=job.rank)
        assert same_bits(compiled(x), layer(x))


def test_the_shape_of_another_rank_alone(P_world):
    """A result that would have another size than it was compiled for."""
    layer = dnn.AllGather(grid(P_world, [job.size]), [0])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(2)).shape == (2 * job.size,)
    n = 3 if job.rank == 0 else 2
    with pytest.raises(
        RuntimeError,
        match=r"rank 0: AllGather number \d+, compiled, at .*; rank 1.*: AllGather number .* test_the_shape",
    ):
        compiled(torch.ones(n))
    layer(torch.ones(n))  # now all ranks know the other shape
    raises_everywhere(
        RuntimeError, "was compiled for a result of other sizes", lambda: compiled(torch.ones(n)), seconds=20
    )


def test_after_shapes_that_do_not_fit(P_world):
    """All ranks agree anew on what they compile."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    layer(torch.ones(2))
    raises_everywhere(ValueError, "AllSumReduce", lambda: layer(torch.ones(2 + job.rank)))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(2)).tolist() == [job.size] * 2


def test_gradients_on_some_ranks_only(P_world):
    compiled = torch.compile(dnn.AllSumReduce(grid(P_world, [job.size]), [0]), fullgraph=True, backend="aot_eager")
    x = torch.ones(3, requires_grad=job.rank == 0)
    raises_everywhere(ValueError, "compiled, with gradients", lambda: compiled(x), seconds=20)


def test_outside_of_the_partition(P_world):
    layer = dnn.Repartition(grid(P_world, [1]), grid(P_world, [1]))
    x = torch.ones(3) if job.rank == 0 else distdl.zero_volume_tensor()
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert same_bits(y, x)
    assert y.data_ptr() != x.data_ptr() or x.numel() == 0


def test_a_program_that_outlives_its_layer(P_world):
    """Its backward pass, like that of a call, needs the operator and not the layer."""
    compiled = torch.compile(dnn.AllSumReduce(grid(P_world, [job.size]), [0]), fullgraph=True, backend="aot_eager")
    x = values([3], seed=job.rank).requires_grad_()
    y = compiled(x).square().sum()
    del compiled
    torch.compiler.reset()
    gc.collect()
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    assert same_bits(torch.autograd.grad(y, x)[0], 2 * layer(layer(x)))
