"""Norms of whole gradients, and the gradients themselves."""

import math

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.ranks import job, raises_everywhere
from support.sequential import layouts_of, parameter_slices
from support.tensors import same_bits
from support.training import KINDS, Twins

kinds = pytest.mark.parametrize("kind", KINDS)


def backward(twins):
    for model_loss in (twins.twin_loss, twins.own_loss):
        model_loss(0).backward()


def assert_same_gradients(twins, rtol=1e-11):
    gradients = distdl.sequential_gradients(twins.model)
    if job.rank > 0:
        assert gradients == {}
        return
    expected = {name: p.grad for name, p in twins.twin.named_parameters() if p.grad is not None}
    assert list(gradients) == list(expected)
    for name, gradient in expected.items():
        assert torch.allclose(gradients[name], gradient, rtol=rtol, atol=1e-14), name


@kinds
@pytest.mark.parametrize("p", [2.0, 1.0, 3, 0.0, math.inf, -math.inf])
def test_clips_by_the_norm_of_the_whole(P_world, kind, p):
    twins = Twins(P_world, kind)
    backward(twins)
    expected = torch.nn.utils.clip_grad_norm_(twins.twin.parameters(), 0.2, p)
    norm = distdl.clip_grad_norm_(twins.model, 0.2, p)
    assert norm.dtype == expected.dtype
    assert norm.shape == expected.shape
    assert torch.allclose(norm, expected, rtol=1e-12)
    assert len(set(job.allgather(norm.item()))) == 1
    assert_same_gradients(twins)


@pytest.mark.ranks(2)
def test_some_parameters(P_world):
    """One parameter, a generator, and parameters without gradients."""
    twins = Twins(P_world)
    backward(twins)
    twins.twin[1].weight.grad = twins.model[1].weight.grad = None
    for pick in (lambda model: model[3].weight, lambda model: model[3].parameters(), lambda model: model[1].weight):
        expected = torch.nn.utils.clip_grad_norm_(pick(twins.twin), 0.1)
        assert torch.allclose(distdl.clip_grad_norm_(pick(twins.model), 0.1).double(), expected.double(), rtol=1e-12)
    assert_same_gradients(twins)


@pytest.mark.ranks(1, 3)
def test_norms_that_are_not_finite(P_world):
    twins = Twins(P_world, "sharded")
    backward(twins)
    for parameter in twins.model.parameters():
        if parameter.numel() and job.rank == job.size - 1:
            parameter.grad.fill_(math.inf)
            break
    raises_everywhere(
        RuntimeError, "order 2.0 .* is inf", lambda: distdl.clip_grad_norm_(twins.model, 1.0, error_if_nonfinite=True)
    )
    assert distdl.clip_grad_norm_(twins.model, 1.0) == math.inf


@pytest.mark.ranks(2)
def test_half_precision_is_summed_in_single(P_world):
    """4,096 gradients of 1: a sum in bfloat16 would stop at 256."""
    P_x = grid(P_world, [job.size, 1])
    layer = dnn.DistributedLinear(P_x, 64, 64, bias=False, dtype=torch.bfloat16)
    layer.weight.grad = torch.ones_like(layer.weight)
    assert distdl.clip_grad_norm_(layer, 1.0) == 64
    gradients = distdl.sequential_gradients(layer)
    assert job.rank > 0 or bool((gradients["weight"] == 1 / 64).all())


@pytest.mark.ranks(2, 3)
def test_parameters_that_no_layer_declared(P_world):
    """The same gradients on all ranks count once, those of one rank as well; others are refused."""
    model = torch.nn.Sequential(
        dnn.DistributedLinear(grid(P_world, [job.size, 1]), 1, 1, bias=False), torch.nn.PReLU(3)
    )
    model[1].weight.grad = torch.full((3,), 2.0)
    assert distdl.clip_grad_norm_(model, 1e9, math.inf) == 2
    assert distdl.clip_grad_norm_(model, 1e9, 1) == 6
    model[1].weight.grad.mul_(job.rank == job.size - 1)
    assert distdl.clip_grad_norm_(model, 1e9, 1) == 6
    gradients = distdl.sequential_gradients(model)
    assert job.rank > 0 or gradients["1.weight"].tolist() == [2.0] * 3
    model[1].weight.grad = torch.full((3,), 1.0 + job.rank)
    raises_everywhere(ValueError, "no layer declared", lambda: distdl.clip_grad_norm_(model, 1.0))
    raises_everywhere(ValueError, "no layer declared 1.weight", lambda: distdl.sequential_gradients(model))


@pytest.mark.ranks(2)
def test_other_arguments_on_the_last_rank_raise_on_all(P_world):
    twins = Twins(P_world)
    backward(twins)
    last = job.rank == job.size - 1
    raises_everywhere(ValueError, "different things", lambda: distdl.clip_grad_norm_(twins.model, 2.0 if last else 1.0))
    raises_everywhere(ValueError, "'many'", lambda: distdl.clip_grad_norm_(twins.model, "many" if last else 1.0))
    raises_everywhere(ValueError, "different things", lambda: distdl.sequential_gradients(twins.model, int(last)))


class Unreadable(torch.Tensor):
    """A gradient of which nothing can be asked."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError("nothing can be read")


@pytest.mark.ranks(2)
def test_a_gradient_that_one_rank_cannot_read(P_world):
    twins = Twins(P_world)
    backward(twins)
    for parameter in twins.model.parameters() if job.rank == 0 else ():
        parameter.grad = torch.zeros_like(parameter).as_subclass(Unreadable)
    raises_everywhere(NotImplementedError, "nothing can be read", lambda: distdl.clip_grad_norm_(twins.model, 1.0))


@kinds
def test_gradients_and_counts_of_the_whole(P_world, kind):
    twins = Twins(P_world, kind)
    assert distdl.sequential_gradients(twins.model) == {}
    assert distdl.parameter_count(twins.model) == sum(p.numel() for p in twins.twin.parameters())
    twins.twin[3].requires_grad_(False)
    twins.model[3].requires_grad_(False)
    backward(twins)
    assert_same_gradients(twins)


def test_models_without_distributed_parameters(P_world):
    model = torch.nn.Linear(2, 2, bias=False)
    model.weight.grad = torch.ones(2, 2)
    assert distdl.clip_grad_norm_(model, 1.0) == 2
    assert same_bits(distdl.sequential_gradients(model)["weight"], model.weight.grad)
    assert distdl.parameter_count(model) == 4


SPECIAL = (0.0, math.inf, -math.inf, math.nan, 1e-200, 1e200)


@pytest.mark.ranks(2, 3)
@pytest.mark.drawn(16)
@kinds
@pytest.mark.parametrize("p", [2.0, 1.0, 0.5, 0.0, -1.0, math.inf, -math.inf])
@pytest.mark.parametrize("value", SPECIAL)
def test_parts_of_special_values(P_world, kind, p, value):
    """One rank's parts of all gradients are zero, infinite, or beyond the range of squares; others are empty."""
    twins = Twins(P_world, kind)
    draw = torch.Generator().manual_seed(3)
    layouts, own = layouts_of(twins.model), dict(twins.model.named_parameters())
    for name, parameter in twins.twin.named_parameters():
        whole = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        slices = parameter_slices(layouts[name])
        last = job.bcast(slices, root=job.size - 1)
        if last is not None:
            whole[last] = value
        parameter.grad = whole
        own[name].grad = whole[slices].clone() if slices is not None else torch.zeros_like(own[name])
    expected = torch.nn.utils.clip_grad_norm_(twins.twin.parameters(), 0.2, p, foreach=False)
    norm = distdl.clip_grad_norm_(twins.model, 0.2, p)
    assert torch.allclose(norm, expected, rtol=1e-12, atol=0, equal_nan=True), (norm, expected)
    gradients = distdl.sequential_gradients(twins.model)
    for name, parameter in twins.twin.named_parameters() if job.rank == 0 else ():
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-11, atol=1e-300, equal_nan=True), name
