"""Inputs are never written, results and gradients share no memory with anything, and what travels stays alive."""

import gc
import itertools
import time

import pytest
import torch

import distdl.nn as dnn
from distdl import structure_check
from support.blocks import grid
from support.cases import CASES
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values

every_operator = pytest.mark.parametrize("make", CASES.values(), ids=CASES)


def memory(tensor):
    """The addresses of a tensor's memory."""
    storage = tensor.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def assert_apart(*tensors):
    """No two of them share memory."""
    ranges = sorted((r for r in map(memory, tensors) if len(r)), key=lambda r: r.start)
    for lower, upper in itertools.pairwise(ranges):
        assert lower.stop <= upper.start, (lower, upper)


def check(call, x):
    """A call and its first two backward passes write to no argument, and return memory of its own."""
    before = x.clone()
    plain = call(x)
    assert_apart(x, plain)
    leaf = x.clone().requires_grad_()
    y = call(leaf)
    g = values(y.shape, y.dtype, seed=3).requires_grad_()
    g_before = g.detach().clone()
    first = torch.autograd.grad(y, leaf, g, retain_graph=True)[0]
    (second,) = torch.autograd.grad(y, leaf, g, create_graph=True)
    assert_apart(leaf.detach(), y.detach(), g.detach(), first, second.detach())
    h = values(second.shape, second.dtype, seed=4)
    h_before = h.clone()
    (back,) = torch.autograd.grad(second, g, h, allow_unused=True, materialize_grads=True)
    assert_apart(h, back, g.detach(), second.detach())
    y.backward(g)
    assert_apart(leaf.grad, g.detach(), y.detach(), leaf.detach())
    assert same_bits(x, before)
    assert same_bits(leaf, before)
    assert same_bits(g, g_before)
    assert same_bits(h, h_before)


@every_operator
def test_primitives(P_world, make):
    case = make(P_world)
    x = values(case.shape, torch.float64, seed=job.rank)
    check(case.operator, x)
    check(lambda x: case.operator.wait(case.operator.start(x)), x)


@every_operator
def test_views_and_what_is_strided(P_world, make):
    """The memory around a view is neither read as its own nor written."""
    case = make(P_world)
    around = values([n + 2 for n in case.shape], torch.float64, seed=job.rank)
    view = (
        around[tuple(slice(1, n + 1) for n in case.shape)].mT if len(case.shape) > 1 else around[1 : case.shape[0] + 1]
    )
    before, x = around.clone(), view.mT if len(case.shape) > 1 else view
    check(case.operator, x)
    assert same_bits(around, before)


def with_zeros(loss):
    """A loss as a function of its input alone."""
    return lambda x: loss(x, torch.zeros_like(x))


UNMOVED = {
    "Broadcast": lambda P: dnn.Broadcast(P, P),
    "SumReduce": lambda P: dnn.SumReduce(P, P),
    "AllSumReduce": lambda P: dnn.AllSumReduce(P, []),
    "AllGather": lambda P: dnn.AllGather(P, [0]),
    "ReduceScatter": lambda P: dnn.ReduceScatter(P, [0]),
    "Repartition": lambda P: dnn.Repartition(P, P),
    "HaloExchange": lambda P: dnn.HaloExchange(P, 0),
    "HaloExchange in its room": lambda P: dnn.HaloExchange(P, [[0, 0]] * 4, [[0, 0]] * 4, [[0, 0]] * 4),
    "MaxPool": lambda P: dnn.DistributedMaxPool2d(P, 1),
    "AvgPool": lambda P: dnn.DistributedAvgPool2d(P, 1),
    "LPPool": lambda P: dnn.DistributedLPPool2d(P, 1.0, 1),
    "AdaptiveAvgPool": lambda P: dnn.DistributedAdaptiveAvgPool2d(P, (None, None)),
    "AdaptiveMaxPool": lambda P: dnn.DistributedAdaptiveMaxPool2d(P, (None, None)),
    "Upsample": lambda P: dnn.DistributedUpsample(P, (3, 2)),
    "Pad": lambda P: dnn.DistributedPad(P, (0, 0)),
    "Pad around": lambda P: dnn.DistributedPad(P, (0, 0, 0, 0), mode="circular"),
    "Conv": lambda P: dnn.DistributedConv2d(P, 2, 2, 1, dtype=torch.double),
    "MSELoss": lambda P: with_zeros(dnn.DistributedMSELoss(P, "none")),
}


@pytest.mark.parametrize("make", UNMOVED.values(), ids=UNMOVED)
@pytest.mark.parametrize("where", ["worker", "outside"])
def test_where_nothing_moves(P_world, make, where):
    """One worker has all, so that nothing would have to be copied; other ranks pass through."""
    worker = 0 if where == "worker" else job.size - 1
    P = grid(P_world, [1, 1, 1, 1], [worker])
    x = values((1, 2, 3, 2)) if P.active else torch.zeros(2, 0, dtype=torch.double)
    check(make(P), x)


@every_operator
def test_references_dropped_while_data_travels(P_world, make):
    """The last rank comes late; by then the others have dropped their inputs, and written over what was theirs."""
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    expected = case.operator(x)
    check_dropped(case.operator, x, expected)


def test_references_to_large_tensors_dropped(P_world):
    """Messages that MPI does not copy until they are received."""
    x = values((1 << 18,), seed=job.rank)
    for layer in (
        dnn.Broadcast(P_world, grid(P_world, [job.size], range(job.size - 1, -1, -1))),
        dnn.Repartition(P_world, grid(P_world, [job.size], range(job.size - 1, -1, -1))),
        dnn.AllSumReduce(P_world, [0]),
        dnn.HaloExchange(P_world, 1 << 17),
    ):
        check_dropped(layer, x, layer(x))


def check_dropped(operator, x, expected):
    """Nobody asks anybody, so that a start returns before the late rank is there."""
    for late in (0, job.size - 1):
        job.Barrier()
        with structure_check(False):
            time.sleep(0.05 if job.rank == late else 0.0)
            copy = x.clone()
            started = operator.start(copy)
            del copy
            gc.collect()
            over = [torch.full_like(x, torch.nan) for _ in range(4)]
            y = operator.wait(started)
        assert same_bits(y, expected)
        assert all(bool(tensor.isnan().all()) for tensor in over)


@every_operator
def test_references_dropped_in_the_backward_pass(P_world, make):
    """Graph, gradients and results go while the adjoint's messages are under way; what arrives is right."""
    case = make(P_world)
    x = values(case.shape, seed=job.rank)

    def collect(gradient):
        gc.collect()

    def gradient(in_halves):
        leaf = x.clone().requires_grad_()
        y = case.operator.wait(case.operator.start(leaf * 1)) if in_halves else case.operator(leaf * 1)
        g = values(y.shape, seed=5)
        y.register_hook(collect)
        y.backward(g)
        del y, g
        gc.collect()
        return leaf.grad

    assert same_bits(gradient(True), gradient(False))


def test_an_exception_between_start_and_wait(P_world):
    """The input goes with the frame. The started message arrives on the other ranks; all are told at the next call."""
    layer = dnn.AllSumReduce(P_world, [0])
    expected = layer(torch.ones(1 << 16))

    def fails():
        x = torch.ones(1 << 16)
        started = layer.start(x)
        if job.rank == 0:
            raise KeyError("of the program's own")
        return layer.wait(started)

    try:
        y = fails()
        assert torch.equal(y, expected)
    except KeyError:
        gc.collect()
    over = torch.full((1 << 16,), torch.nan)
    raises_everywhere(RuntimeError, "started and dropped", lambda: layer(torch.ones(1 << 16)))
    assert torch.equal(layer(torch.ones(1 << 16)), expected)
    assert bool(over.isnan().all())
