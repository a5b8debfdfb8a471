"""Changes of a distributed model, or of its original, that cannot count: raised on all ranks."""

import pytest
import torch

import distdl
from support.blocks import grid
from support.models import Tied
from support.ranks import job, raises_everywhere

P_world = distdl.Partition(job)
P_x = grid(P_world, [P_world.size, 1])


def untie(model):
    model.second.weight = torch.nn.Parameter(model.second.weight.detach().clone())


def replace(model):
    model.between = torch.nn.Tanh()


def add(model):
    model.second.register_module("more", torch.nn.ReLU())


def assign_forward(model):
    model.between.forward = torch.sin


def change_class(model):
    model.between.__class__ = torch.nn.Tanh


def hook_backward(model):
    model.second.register_full_backward_hook(lambda *arguments: None)


CHANGES = {
    "untied": (untie, ValueError, "second.weight is no longer the same parameter as first.weight"),
    "replaced": (replace, ValueError, "the module between was added, removed or replaced"),
    "added": (add, ValueError, "the module second.more was added, removed or replaced"),
    "forward": (assign_forward, ValueError, "between.forward was assigned after"),
    "class": (change_class, ValueError, "between was a ReLU when the model was distributed, and is a Tanh now"),
    "hook": (hook_backward, NotImplementedError, "second has a hook on its backward pass"),
}


@pytest.mark.parametrize("one_rank", [False, True], ids=["all ranks", "one rank"])
@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_that_cannot_count(name, called, one_rank):
    change, kind, words = CHANGES[name]
    ours = distdl.distribute(Tied(), P_x)
    x = distdl.scatter(torch.ones(4, 3), P_x)
    if called:
        ours(x)
    if not one_rank or job.rank == job.size - 1:
        change(ours)
    for _ in range(2):  # it does not go away
        raises_everywhere(kind if not one_rank or job.size == 1 else ValueError, words, lambda: ours(x), seconds=20.0)


def test_parameters_that_one_rank_freezes():
    with distdl.parameter_layout("replicated"):
        ours = distdl.distribute(Tied(), P_x)
    x = distdl.scatter(torch.ones(4, 3), P_x)
    ours(x)
    ours.first.bias.requires_grad_(job.rank > 0 or job.size == 1)
    if job.size > 1:
        raises_everywhere(ValueError, "with first.bias frozen", lambda: ours(x))
    ours.first.bias.requires_grad_(False)
    ours(x).sum().backward()
    assert ours.first.bias.grad is None
    assert ours.second.bias.grad is not None


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_parameters_belong_to_the_result(register):
    model, seen = Tied(), []
    getattr(model.first.bias, register)(lambda tensor: None)
    raises_everywhere(NotImplementedError, "parameter first.bias has a hook", lambda: distdl.distribute(model, P_x))
    ours = distdl.distribute(Tied(), P_x)
    getattr(ours.first.bias, register)(lambda tensor: seen.append(tensor.shape))
    ours(distdl.scatter(torch.ones(4, 3), P_x)).sum().backward()
    assert seen == [ours.first.bias.shape]


@pytest.mark.parametrize("before", [False, True])
def test_hooks_on_backward_passes_of_the_given_model_are_refused(before):
    model = Tied()
    getattr(model.between, f"register_full_backward_{'pre_' if before else ''}hook")(lambda *arguments: None)
    raises_everywhere(
        NotImplementedError, "between has a hook on its backward pass", lambda: distdl.distribute(model, P_x)
    )
