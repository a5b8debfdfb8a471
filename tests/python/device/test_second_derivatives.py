"""Derivatives of derivatives on a device, beside those of one process on the CPU.

Each rank also makes nodes of its own, so that all threads count other numbers on each rank.
"""

import copy

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.distributed import assert_none, noise, off
from support.models import Residual, Tokens
from support.ranks import job, together
from support.tensors import same_bits, values


def make_nodes(like):
    """In backward passes on the ranks behind the first, where a thread of the device would count them."""
    x = torch.ones(1, dtype=like.dtype, device=like.device, requires_grad=True)
    y = x.exp().exp().exp().exp()
    for _ in range(50 * job.rank):
        torch.autograd.grad(y, x, create_graph=True)


def critic(function, x):
    """The losses of a critic: scores of samples, and a penalty for the slope at others."""
    make_nodes(x)
    real, generated = function(x.sin()).sum(), function(x)
    (slope,) = torch.autograd.grad(generated.sum(), x, create_graph=True)
    make_nodes(x)
    return [generated.square().sum() - real, ((slope + 1).square() - 1).square().sum()]


def equation(function, x):
    """The losses of an equation of third order: of values on a boundary, and of derivatives."""
    make_nodes(x)
    boundary, derivative = function(x.cos()).sum(), function(x)
    losses = [derivative.square().sum()]
    for _ in range(3):
        (derivative,) = torch.autograd.grad(derivative.pow(2).sum(), x, create_graph=True)
        losses.append(derivative.sin().sum())
    make_nodes(x)
    return [boundary, *losses]


def solution():
    """A network as a function of points."""
    layers = [torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5), torch.nn.Softplus(), torch.nn.Linear(5, 1)]
    return torch.nn.Sequential(*layers)


CASES = {
    "residual": (Residual, (3, 2, 9, 7), 2, critic),
    "tokens": (Tokens, (2, 2, 9, 10), 2, critic),
    "equation": (solution, (7, 4), 1, equation),
}


@pytest.mark.parametrize("layout", ["owner", "sharded", "replicated"])
@pytest.mark.parametrize("inactive", [0, 1])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradients_by_a_loss_of_derivatives(P_world, case, inactive, layout, device):
    """By all parameters and the input, from several losses."""
    make, shape, split, losses_of = case
    torch.manual_seed(0)
    twin = make().double()
    workers = max(1, job.size - inactive)
    P_x = grid(P_world, [workers if d == split else 1 for d in range(len(shape))])
    with distdl.parameter_layout(layout):
        ours = distdl.distribute(copy.deepcopy(twin), P_x).to(device)
    whole = noise(shape, seed=1).requires_grad_()
    x = distdl.scatter(whole.detach(), P_x).detach().to(device).requires_grad_()
    for _ in range(2):  # gradients of both add up
        torch.autograd.backward(losses_of(ours, x))
        torch.autograd.backward(losses_of(twin, whole))
    gradients, of_x = distdl.sequential_gradients(ours), distdl.gather(x.grad, P_x)
    problems = [off(of_x, whole.grad, 1e-9)]
    for name, parameter in twin.named_parameters():
        wrong = "" if job.rank else off(gradients[name], parameter.grad, 1e-9)
        problems.append(wrong and f"{name} {wrong}")
    assert_none([" ".join(filter(None, problems))])


@pytest.mark.parametrize("halves", [False, True])
def test_operators_in_turn(P_world, halves, device):
    """Operators of the first pass, of a derivative, and of what is computed with it, in one graph."""
    total, shift = dnn.AllSumReduce(P_world, [0]), dnn.HaloExchange(grid(P_world, [job.size]), [(1, 1)])

    def call(layer, x):
        return layer.wait(layer.start(x)) if halves else layer(x)

    def results(place):
        x = values((4,), seed=job.rank).to(place).requires_grad_()
        y = call(total, x.square())
        make_nodes(x)
        (first,) = torch.autograd.grad((y * call(shift, y.sin())[1:-1]).sum(), x, create_graph=True)
        z = call(total, first * y) * first.sin()
        make_nodes(x)
        (second,) = torch.autograd.grad([z.sum(), call(shift, first).square().sum()], x, create_graph=True)
        return first, second, *torch.autograd.grad(second.square().sum() + z.square().sum(), x)

    expected, measured = results("cpu"), results(device)
    assert all(together(all(same_bits(y.cpu(), z) for y, z in zip(measured, expected, strict=True))))
