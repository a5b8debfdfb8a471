"""Derivatives of derivatives, and of activations that are computed again, where the ranks' graphs are not alike."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import distdl
import distdl.nn as dnn
from support.blocks import block_of, grid
from support.cases import CASES
from support.ranks import job, raises_everywhere, total
from support.tensors import values


@pytest.mark.shared
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@pytest.mark.parametrize("curved", ["first", "last"])
@pytest.mark.parametrize("halves", [False, True])
def test_second_derivatives_where_one_rank_alone_is_not_linear(P_world, make, curved, halves):
    """f sums y^2 / 2 on one rank and y on the others: only there does the gradient depend on the call before it.

    With D, the projection on that rank, f' = A* (D A x + (1 - D) 1), and the gradient of <f', f'> / 2 is A* D A f'.
    """
    case = make(P_world)
    A = case.operator._operator
    operator = (lambda x: case.operator.wait(case.operator.start(x))) if halves else case.operator
    here = job.rank == (0 if curved == "first" else job.size - 1)
    x = values(case.shape, seed=job.rank).requires_grad_()
    y = operator(x)
    (first,) = torch.autograd.grad((y.square() / 2 if here else y).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(
        first.square().sum() / 2, x, allow_unused=True, materialize_grads=True, retain_graph=True
    )
    ax, x = y.detach(), x.detach()
    expected = A.adjoint(x, ax if here else torch.ones_like(ax))
    assert torch.equal(first.detach(), expected)
    bent = case.operator(expected)
    assert torch.equal(second, A.adjoint(x, bent if here else torch.zeros_like(ax)))


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_gradients_that_are_not_differentiated_again_leave_no_graph(P_world, make):
    case = make(P_world)
    x = values(case.shape, seed=job.rank).requires_grad_()
    case.operator(x).sum().backward()
    assert not x.grad.requires_grad


def network(P_world):
    """Layers on different ranks, with sums, copies and a loss."""
    P_space, P_first = grid(P_world, [1, 1, job.size]), grid(P_world, [1, 1, 1], [job.size - 1])
    P_flat, P_row = grid(P_world, [1, 1], [job.size - 1]), grid(P_world, [1, job.size])
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        dnn.DistributedConv1d(P_space, 2, 2, 3, padding=1, dtype=torch.float64),
        torch.nn.ReLU(),
        dnn.DistributedMaxPool1d(P_space, 2),
        dnn.Repartition(P_space, P_first),
        torch.nn.Flatten(),
        dnn.DistributedLinear(P_flat, P_row, grid(P_world, [job.size, 1]), 8, 5, dtype=torch.float64),
    )
    return P_space, P_row, layers, dnn.DistributedMSELoss(P_row)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_that_are_computed_again(P_world, reentrant):
    """Checkpointed, the network communicates once more in its backward pass, and gives the same bits."""
    P_x, P_y, layers, loss = network(P_world)
    x, target = block_of(values([3, 2, 8]), P_x), block_of(values([3, 5], seed=1), P_y)
    x.requires_grad_(reentrant)  # what this kind of checkpoint asks for
    loss(layers(x), target).backward()
    expected = [parameter.grad for parameter in layers.parameters()]
    layers.zero_grad()
    again = checkpoint(lambda x: loss(layers(x), target), x, use_reentrant=reentrant)
    again.backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(layers.parameters(), expected, strict=True))
    # In parts, of which the first and the last communicate on some ranks only.
    layers.zero_grad()
    hidden = checkpoint(layers[:4], x, use_reentrant=reentrant)
    loss(checkpoint(layers[4:], hidden, use_reentrant=reentrant), target).backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(layers.parameters(), expected, strict=True))


def test_a_penalty_on_the_gradient(P_world):
    """The gradient of a loss and of its gradient's square, as those of the sequential network."""
    P_x, P_y, layers, loss = network(P_world)
    whole, whole_target = values([3, 2, 8]), values([3, 5], seed=1)
    twin = torch.nn.Sequential(
        torch.nn.Conv1d(2, 2, 3, padding=1, dtype=torch.float64),
        torch.nn.ReLU(),
        torch.nn.MaxPool1d(2),
        torch.nn.Identity(),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5, dtype=torch.float64),
    )
    distdl.load_sequential(layers, twin.state_dict())

    def penalised(value, x):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        return gradient.square().sum()

    expected = torch.nn.MSELoss()(twin(whole.requires_grad_()), whole_target)
    expected_penalty = penalised(expected, whole)
    (expected + expected_penalty).backward()
    x = block_of(whole.detach(), P_x).requires_grad_()
    value = loss(layers(x), block_of(whole_target, P_y))
    penalty = penalised(value, x)
    (value + penalty).backward()
    assert abs(total(penalty.item()) - expected_penalty.item()) < 1e-12
    for name, parameter in layers.named_parameters():
        parameter.data = parameter.grad
        parameter.grad = None
        assert name in dict(twin.named_parameters())
    gradients = distdl.sequential_state_dict(layers)
    if job.rank == 0:
        for name, parameter in twin.named_parameters():
            assert torch.allclose(gradients[name], parameter.grad, rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("sparse", ["all", "last"])
def test_a_sparse_gradient(P_world, sparse):
    """An embedding passes one back on the ranks that ask for it; it arrives as any other."""
    here = sparse == "all" or job.rank == job.size - 1
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x = values([5, 2], seed=job.rank).requires_grad_()
    torch.nn.functional.embedding(torch.tensor([0, 3, 3]), layer(x), sparse=here).sum().backward()
    expected = torch.zeros(5, 2, dtype=torch.float64)
    expected[0], expected[3] = job.size, 2 * job.size
    assert torch.equal(x.grad, expected)


def test_batched_gradients_are_refused_on_all(P_world):
    layer = dnn.Repartition(grid(P_world, [job.size]), grid(P_world, [job.size], range(job.size - 1, -1, -1)))
    x = values([2], seed=job.rank).requires_grad_()
    y = layer(x)

    def batched():
        torch.autograd.grad(y, x, torch.eye(2, dtype=torch.float64), is_grads_batched=True)

    raises_everywhere(RuntimeError, "Repartition: the gradient has no memory of its own", batched)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("numel", [10, 100_000])
def test_activations_of_which_a_policy_keeps_some(P_world, numel):
    """Selective checkpointing sees an operator, not the writes to memory that it is made of."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])

    def keep_all(context, operator, *arguments, **options):
        return CheckpointPolicy.MUST_SAVE

    def function(x):
        return layer(x.sin()).cos().sum()

    x = torch.linspace(0, 1, numel, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(function(x), x)
    contexts = partial(create_selective_checkpoint_contexts, keep_all)
    checkpoint(function, x, use_reentrant=False, context_fn=contexts).backward()
    assert torch.equal(x.grad, expected)


def test_nothing_is_recorded_in_inference_mode(P_world):
    layer, x = dnn.AllSumReduce(grid(P_world, [job.size]), [0]), torch.ones(2, requires_grad=True)
    with torch.inference_mode(), torch.enable_grad():
        assert not layer(x).requires_grad
    assert layer(x).requires_grad


def test_a_linear_operator_asks_for_no_graph_that_was_freed(P_world):
    """Its gradient does not depend on its input: a second derivative does without the first graph."""
    layer = dnn.AllSumReduce(grid(P_world, [job.size]), [0])
    x, w = (values([3], seed=seed).requires_grad_() for seed in (1, 2))
    loss = (layer(x) * w).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    loss.backward()
    w.grad = None
    gradient.square().sum().backward()
    assert torch.equal(w.grad, 2 * job.size**2 * w.detach())


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", ["repartition", "halo_exchange", "started", "interpolate", "attention"])
def test_functions_that_a_checkpoint_computes_again(P_world, name, use_reentrant):
    """They construct in the backward pass, too, where ranks outside of the partition compute nothing again."""
    workers = max(1, job.size - 1)
    P_x = grid(P_world, [1, workers, 1], [*range(workers)])
    function = distdl.functional
    call = {
        "repartition": lambda x: function.repartition(x, P_x, grid(P_world, [1, 1, 1])),
        "halo_exchange": lambda x: function.halo_exchange(x, P_x, [0, 1, 0]),
        "started": lambda x: function.wait(function.start(function.all_sum_reduce, x, P_x, [1])),
        "interpolate": lambda x: function.interpolate(x, P_x, scale_factor=2.0),
        "attention": lambda x: function.scaled_dot_product_attention(x, x, x, P_x),
    }[name]
    x = block_of(values((2, 2 * workers, 4)), P_x).requires_grad_()
    gradients = []
    for again in (lambda x: checkpoint(call, x, use_reentrant=use_reentrant), call):
        x.grad = None
        again(x * 1.0).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
