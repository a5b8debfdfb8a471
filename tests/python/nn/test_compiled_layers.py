"""Layers in compiled and exported programs: the numbers, votes and mistakes of calls, in one graph."""

import copy
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import distdl.nn as dnn
from distdl import _core
from distdl.nn.base.compile.arguments import template_of
from support.blocks import grid
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values

pytestmark = [
    # Of torch's own modules, which it imports when it compiles.
    pytest.mark.filterwarnings("ignore:`torch.jit.script", "ignore:.*:DeprecationWarning:torch"),
    pytest.mark.ranks(1, 2),
    pytest.mark.usefixtures("fresh_compiler"),
]


def test_a_tensor_keeps_an_object_for_as_long_as_it_lives():
    kept = torch.nn.Module()
    watched = weakref.ref(kept)
    holder = _core.holder_of(kept)
    alias = holder.detach()
    del kept, holder
    assert _core.held_by(alias) is watched()
    del alias
    assert watched() is None


class Network(torch.nn.Module):
    """Layers in blocks of batch or space, and torch's functions between them."""

    def __init__(self, P_x):
        super().__init__()
        torch.manual_seed(1)
        self.convolution = dnn.DistributedConv2d(P_x, 2, 3, 3, padding=1, dtype=torch.float64)
        self.norm = dnn.DistributedBatchNorm2d(P_x, 3, dtype=torch.float64)
        self.dropout = dnn.DistributedDropout(P_x, 0.3)
        self.pool = dnn.DistributedMaxPool2d(P_x, 2)

    def forward(self, x):
        y = torch.relu(self.norm(self.convolution(x) * 2))
        return self.pool(self.dropout(y)).square()


def images(*shape):
    return values(shape, seed=job.rank)


def trained(model, x):
    """The result, the gradients, and the buffers of a step of training."""
    torch.manual_seed(2)
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.sum().backward()
    return [y, x.grad, *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]


def assert_same(results, expected):
    assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_whole_model_in_one_graph(P_world, backend):
    model = Network(grid(P_world, [1, 1, job.size, 1]))
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    x = images(2, 2, 4, 6)
    for _ in range(2):
        assert_same(trained(compiled, x), trained(twin, x))
    votes = []
    for module in (compiled, twin):
        before = _core.votes()
        trained(module, x)
        votes.append(_core.votes() - before)
    assert votes[0] == votes[1]
    model.eval(), twin.eval()
    with torch.no_grad():
        assert same_bits(compiled(x), twin(x))


@pytest.mark.turns(3)
@pytest.mark.ranks(2)
def test_the_default_compiler(P_world):
    """A whole model, which is compiled again for batches of any size."""
    model = torch.nn.Sequential(Network(grid(P_world, [1, 1, job.size, 1])), torch.nn.Tanh())
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True)
    for batch in (2, 3, 5):
        x = images(batch, 2, 4, 6)
        for a, b in zip(trained(compiled, x), trained(twin, x), strict=True):
            assert torch.allclose(a, b, rtol=1e-13, atol=1e-13)  # tanh of another vector library


def test_batches_of_other_sizes(P_world):
    """Each rank compiles by itself, where its own block has another size."""
    model = Network(grid(P_world, [job.size, 1, 1, 1]))
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for n in ([2, 2], [3, 2], [3, 4], [5, 4], [2, 2], [1, 3]):
        x = images(n[job.rank], 2, 4, 4)
        assert_same(trained(compiled, x), trained(twin, x))


@pytest.mark.ranks(2)
def test_results_whose_sizes_another_rank_changes(P_world):
    """The program of rank 0 for blocks of four rows does not fit where rank 1 has more than that."""
    layer = dnn.DistributedMaxPool2d(grid(P_world, [1, 1, 2, 1]), 2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=False)
    for rows in (4, 8):
        assert compiled(images(1, 1, rows, 4)).shape == (1, 1, rows // 2, 2)
    x = images(1, 1, 4 if job.rank == 0 else 8, 4)
    raises_everywhere(RuntimeError, "changed its shape or dtype. The next call is compiled anew", lambda: compiled(x))
    assert same_bits(compiled(x), layer(x))
    assert layer(x).shape == (1, 1, 3, 2)


class Around(dnn.Layer):
    """A layer in whose call another one votes no more, once it is known."""

    def __init__(self, P_x):
        super().__init__(locals())

    def compute(self, input):
        return self.inner(input)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("within", [False, True])
def test_a_structure_that_a_call_without_a_compiler_meets_first(P_world, within):
    """Back at it, the program of rank 0 still has the sizes of other blocks."""
    P = grid(P_world, [1, 1, 2, 1])
    layer = dnn.DistributedMaxPool2d(P, 3, 1, 1)

    def eager(x):
        y = layer(x)
        return y * y.shape[2]

    compiled, outer = torch.compile(eager, backend="eager", dynamic=False), Around(P)
    few, many = (torch.ones(1, 1, rows if job.rank == 1 else 4, 2) for rows in (4, 6))

    def call(function, x):
        outer.__dict__["inner"] = function
        return (outer if within else function)(x)

    for function, x in ((compiled, few), (compiled, few), (eager, many), (compiled, few)):
        y = call(function, x)
        assert torch.equal(y, torch.full_like(y, y.shape[2]))
    call(eager, many)
    raises_everywhere(RuntimeError, "changed its shape or dtype. The next call", lambda: call(compiled, many))
    assert torch.equal(call(compiled, many), torch.full((1, 1, 5, 2), 5.0))


def test_ranks_may_run_what_is_not_compiled(P_world):
    model = Network(grid(P_world, [1, 1, job.size, 1]))
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = images(2, 2, 4, 6)
    assert_same(trained(compiled, x), trained(twin, x))
    assert_same(trained(model if job.rank else compiled, x), trained(twin, x))


@pytest.mark.mpi(min_size=2)
@pytest.mark.ranks(2)
def test_gradients_on_some_ranks_only(P_world):
    compiled = torch.compile(dnn.DistributedSoftmax(grid(P_world, [2]), 0), fullgraph=True, backend="aot_eager")
    x = torch.ones(3, requires_grad=job.rank == 0)
    raises_everywhere(RuntimeError, "gradients are asked for on some ranks", lambda: compiled(x), seconds=60)


def test_export(P_world):
    model = Network(grid(P_world, [1, 1, job.size, 1])).eval()
    x = images(2, 2, 4, 6)
    program = torch.export.export(model, (x,))
    assert same_bits(program.module()(x), model(x))


def test_autocast(P_world):
    """The dtypes of a call, though a compiled program runs without autocast."""
    linear = dnn.DistributedLinear(grid(P_world, [job.size, 1]), 3, 2)
    x = torch.ones(2, 3)
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
            assert compiled(x).dtype == linear(x).dtype == (torch.bfloat16 if enabled else torch.float32)


def test_arguments_behind_the_tensors(P_world):
    """Masks, flags, and results that are None."""
    P_x = grid(P_world, [job.size, 1, 1])
    torch.manual_seed(1)
    attention = dnn.DistributedMultiheadAttention(P_x, 4, 2, batch_first=True, dtype=torch.float64)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    x = images(2, 3, 4)
    for flags in ({"need_weights": False}, {"need_weights": True, "average_attn_weights": False}):
        for a, b in zip(compiled(x, x, x, **flags), attention(x, x, x, **flags), strict=True):
            assert (a is None and b is None) or same_bits(a, b)


def test_arguments_that_no_graph_can_have():
    with pytest.raises(TypeError, match="takes tensors, numbers and texts; not complex"):
        template_of([1.5, {"factor": 1j}], [])


@pytest.mark.parametrize("tool", ["trace", "make_fx"])
def test_recorders_that_see_no_communication(P_world, tool):
    from torch.fx.experimental.proxy_tensor import make_fx

    def record(call):
        torch.jit.trace(call, x) if tool == "trace" else make_fx(call)(x)

    x = images(2, 2, 4, 6)
    P_x = grid(P_world, [1, 1, job.size, 1])
    P_one = grid(P_world, [1, 1, 1, 1])
    loss = dnn.DistributedMSELoss(P_one)  # a single rank computes it, and all have it
    calls = [
        dnn.AllSumReduce(P_x, [2]),
        dnn.DistributedConv2d(P_x, 2, 3, 3, dtype=torch.float64),
        dnn.DistributedAvgPool2d(P_x, 1),  # communicates nothing
        lambda x: loss(*[x if P_one.active else x[:0]] * 2),
    ]
    for call in calls:
        raises_everywhere(RuntimeError, "use torch.export", lambda call=call: record(call), seconds=20)


def test_fake_tensors_outside_of_a_compiler(P_world):
    """On one rank: they have a device and a shape, and no memory, which ended the process or let the others wait."""
    P_x, x = grid(P_world, [1, 1, job.size]), torch.ones(2, 2, 8)
    fake = FakeTensorMode().from_tensor(x) if job.rank == 0 else x
    exchange, words = dnn.HaloExchange(P_x, 1), "is a FakeTensor, which has no memory"
    for call in (dnn.DistributedAvgPool1d(P_x, 3), exchange, exchange.start):
        raises_everywhere(TypeError, words, lambda call=call: call(fake))
    layer = dnn.DistributedPReLU(P_x)
    if job.rank == 0:
        layer.weight = torch.nn.Parameter(FakeTensorMode().from_tensor(torch.ones(1)))
    raises_everywhere(TypeError, "sparse, fake", lambda: layer(x))
