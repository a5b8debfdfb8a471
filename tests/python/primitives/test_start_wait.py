"""Operators in two halves: the bits of a call, several under way, and mistakes with what was started."""

import gc

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.cases import CASES
from support.ranks import job, raises_everywhere
from support.tensors import same_bits, values


@pytest.fixture(params=["on", "off", "on some ranks"], autouse=True)
def _progress_thread(request):
    """The same with the progress thread and without, and where only some ranks have it."""
    before = distdl.progress.progress_thread()
    distdl.progress.set_progress_thread(
        request.param == "on" or (request.param == "on some ranks" and job.rank % 2 == 0)
    )
    yield
    distdl.progress.set_progress_thread(before)


def in_halves(layer):
    return lambda x: layer.wait(layer.start(x))


def derivatives(function, x, weight):
    """The result, and the first and second derivatives of a function of it that is not linear."""
    x = x.clone().requires_grad_()
    y = function(x)
    weight = weight.reshape(y.shape)
    (first,) = torch.autograd.grad((y.square() * weight).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    return y, first, second


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_halves_give_what_a_call_gives(P_world, make):
    case = make(P_world)
    x = values(case.shape, seed=job.rank)
    weight = values(case.operator(x).shape, seed=100 + job.rank)
    at_once = derivatives(case.operator, x, weight)
    halves = derivatives(in_halves(case.operator), x, weight)
    assert all(same_bits(a, b) for a, b in zip(at_once, halves, strict=True))
    assert in_halves(case.operator)(x).grad_fn is None


def test_several_under_way(P_world):
    """Started in one order, waited for in another on each rank; calls at once take their turn in between."""
    cases = [make(P_world) for make in CASES.values()]
    inputs = [values(case.shape, seed=i + job.rank).requires_grad_() for i, case in enumerate(cases)]
    expected = [case.operator(x) for case, x in zip(cases, inputs, strict=True)]
    expected_gradients = torch.autograd.grad([y.square().sum() for y in expected], inputs)
    started = [case.operator.start(x) for case, x in zip(cases, inputs, strict=True)]
    in_between = cases[1].operator(inputs[1])
    order = range(len(cases)) if job.rank % 2 == 0 else reversed(range(len(cases)))
    results = {i: cases[i].operator.wait(started[i]) for i in order}
    assert same_bits(in_between, expected[1])
    assert all(same_bits(results[i], y) for i, y in enumerate(expected))
    # Each rank made the results in an order of its own, so that the losses have to be taken singly.
    for i, (x, gradient) in enumerate(zip(inputs, expected_gradients, strict=True)):
        assert same_bits(torch.autograd.grad(results[i].square().sum(), x)[0], gradient)


def test_all_started_then_all_waited_for_in_the_backward_pass(P_world):
    P_x = grid(P_world, [job.size])
    layers = [dnn.AllSumReduce(P_x, [0]), dnn.HaloExchange(P_x, 1, periodic=True), dnn.AllGather(P_x, [0])]
    x = values([3], seed=job.rank).requires_grad_()
    expected = torch.autograd.grad(sum(layer(x).square().sum() for layer in layers), x)
    started = [layer.start(x) for layer in layers]
    total = sum(layer.wait(request).square().sum() for layer, request in zip(layers, started, strict=True))
    assert same_bits(torch.autograd.grad(total, x)[0], expected[0])


def test_in_the_backward_pass_the_halves_swap(P_world):
    """Computations between start and wait are differentiated between the adjoint's two halves."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = values([4], seed=job.rank).requires_grad_()
    weight = values([4], seed=7).requires_grad_()
    started = layer.start(x)
    meanwhile = weight.sin()
    y = layer.wait(started)
    order = []
    nodes = {"wait": y.grad_fn, "meanwhile": meanwhile.grad_fn, "start": y.grad_fn.next_functions[0][0]}
    for name, node in nodes.items():
        node.register_prehook(lambda _, name=name: order.append(name))
    (y.sum() + meanwhile.sum()).backward()
    assert order == ["wait", "meanwhile", "start"]
    assert nodes["wait"].name() == "distdl::AllSumReduce wait backward"
    assert nodes["start"].name() == "distdl::AllSumReduce start backward"
    assert same_bits(x.grad, torch.full([4], float(job.size), dtype=torch.float64))


@pytest.mark.parametrize(
    "name", sorted({name for name in distdl.functional.__all__ if hasattr(distdl.operators, name)})
)
def test_functions(P_world, name):
    P_x = grid(P_world, [job.size])
    arguments = {
        "all_gather": (P_x, [0]),
        "all_sum_reduce": (P_x, [0]),
        "broadcast": (P_x, P_x),
        "halo_exchange": (P_x, 1),
        "reduce_scatter": (P_x, [0]),
        "repartition": (P_x, P_x),
        "sum_reduce": (P_x, P_x),
    }[name]
    function = getattr(distdl.functional, name)
    x = values([2 * job.size], seed=job.rank)
    started = distdl.functional.start(function, x, *arguments)
    assert same_bits(distdl.functional.wait(started), function(x, *arguments))


def test_only_primitives_can_be_started_by_function(P_world):
    with pytest.raises(ValueError, match=r"no primitive of distdl\.functional"):
        distdl.functional.start(torch.sin, torch.ones(1))


def test_halo_in_room(P_world):
    layer = dnn.HaloExchange(
        grid(P_world, [job.size]), [[1, 1]], [[1, 1]], [[int(job.rank > 0), int(job.rank < job.size - 1)]]
    )
    x = values([5], seed=job.rank)
    assert same_bits(in_halves(layer)(x), layer(x))


def test_dropped(P_world):
    """The next call on any rank's operator tells; nothing else is lost."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = torch.ones(3)
    started = layer.start(x)
    if job.rank == job.size - 1:
        del started
        gc.collect()
    else:
        assert bool((layer.wait(started) == job.size).all())
    rank = job.size - 1
    raises_everywhere(RuntimeError, f"rank {rank} comes after AllSumReduce was started and dropped", lambda: layer(x))
    assert bool((layer(x) == job.size).all())


def test_waited_for_twice_or_by_another(P_world):
    P_x = grid(P_world, [job.size])
    layer, other = dnn.AllSumReduce(P_x, [0]), dnn.HaloExchange(P_x, 1)
    started = layer.start(torch.ones(3))
    with pytest.raises(ValueError, match=r"HaloExchange: wait\(\) was passed a start of AllSumReduce"):
        other.wait(started)
    assert bool((layer.wait(started) == job.size).all())
    with pytest.raises(RuntimeError, match=r"AllSumReduce: wait\(\) was called before"):
        layer.wait(started)


def test_an_input_that_is_written_too_early(P_world):
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = torch.ones(3)
    started = layer.start(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="AllSumReduce: the input was written between start"):
        layer.wait(started)


def test_a_mistake_is_found_at_the_start(P_world):
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = torch.ones(3 if job.rank else 4)
    if job.size > 1:
        raises_everywhere(ValueError, "their shapes must be equal", lambda: layer.start(x))
    assert bool((layer.wait(layer.start(torch.ones(2))) == job.size).all())


def test_the_input_lives_as_long_as_it_is_sent(P_world):
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    started = [layer.start(torch.full((1 << 16,), float(i))) for i in range(8)]
    gc.collect()
    junk = [torch.full((1 << 16,), -1.0) for _ in range(8)]
    for i, request in enumerate(started):
        assert bool((layer.wait(request) == i * job.size).all())
    assert len(junk) == 8


def test_dropped_while_nobody_votes(P_world):
    """Without the vote the others would not hear of it: the next call that votes tells."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = torch.ones(3)
    with distdl.structure_check(False):
        layer(x)  # which votes once more
        started = layer.start(x)
    if job.rank == 0:
        del started
        gc.collect()
    else:
        layer.wait(started)
    with distdl.structure_check(False):
        assert bool((layer(x) == job.size).all())
    raises_everywhere(RuntimeError, "was started and dropped", lambda: layer(x))


def test_checkpointing_drops_what_it_does_not_need(P_world):
    """The second forward pass ends where everything is there that was saved, which may be before a wait."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])

    def function(x):
        started = layer.start(torch.ones(3, dtype=x.dtype))
        return x.sin() + layer.wait(started)

    x = values([3], seed=job.rank).requires_grad_()
    checkpoint(function, x, use_reentrant=False).sum().backward()
    gc.collect()
    assert same_bits(x.grad, x.detach().cos())
    assert bool((layer(torch.ones(3)) == job.size).all())


def test_waited_for_in_inference_mode(P_world):
    """A recorded call stays recorded: the other ranks have recorded it too."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = values([3], seed=job.rank).requires_grad_()
    started = layer.start(x)
    with torch.inference_mode(job.rank == 0):
        y = layer.wait(started)
    assert same_bits(torch.autograd.grad(y.square().sum(), x)[0], 2 * layer(layer(x)))


def test_a_hook_that_replaces_what_passes_between_the_halves(P_world):
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    y = in_halves(layer)(torch.ones(3, requires_grad=True))
    y.grad_fn.register_hook(lambda inputs, _: tuple(2 * gradient for gradient in inputs))
    with pytest.raises(RuntimeError, match="a hook replaced what passes"):
        y.sum().backward()
    assert bool((layer(torch.ones(3)) == job.size).all())
