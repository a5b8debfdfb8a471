"""Modules of a distributed model that are called by themselves, and tools that look at them."""

import copy

import pytest
import torch
from torch.nn.utils import parametrize

import distdl
from support.blocks import grid
from support.ranks import job, together

pytestmark = pytest.mark.ranks(1, 2)


class Nested(torch.nn.Module):
    """Modules in a list, in a dict, and within others."""

    def __init__(self, second=torch.nn.Linear):
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
        self.rest = torch.nn.ModuleList([second(4, 4), torch.nn.Dropout(0.0)])
        self.heads = torch.nn.ModuleDict({"first": torch.nn.BatchNorm1d(4)})

    def forward(self, x):
        x = self.stem(x)
        for module in self.rest:
            x = module(x)
        return self.heads["first"](x)


class Doubled(torch.nn.Module):
    """A weight computed from another."""

    def forward(self, x):
        return 2 * x


def computed(*sizes):
    """A layer with such a weight."""
    layer = torch.nn.Linear(*sizes)
    parametrize.register_parametrization(layer, "weight", Doubled())
    return layer


def made(P_world, make=Nested):
    torch.manual_seed(0)
    model = make()
    return model, distdl.distribute(model, grid(P_world, [job.size, 1]))


def assert_refused(ours):
    for path in ("stem", "stem.0", "stem.1", "rest.0", "rest.1", "heads.first"):
        with pytest.raises(RuntimeError, match=rf"distribute: {path} cannot be called by itself.* Call the model"):
            ours.get_submodule(path)(torch.ones(2, 4))


def test_modules_are_refused_and_the_model_works(P_world):
    model, ours = made(P_world)
    x = torch.rand(4, 3)
    for mode in (True, False):
        model.train(mode)
        ours.train(mode)
        assert torch.allclose(
            together(ours(distdl.scatter(x, ours.P_x)).detach())[0], model(x)[: -(-4 // job.size)], atol=1e-6
        )
        assert_refused(ours)
    assert model.stem(x).shape == (4, 4)  # the model itself is as it was


def test_a_module_of_a_sequential(P_world):
    _, ours = made(P_world, lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()))
    with pytest.raises(RuntimeError, match="0 cannot be called by itself"):
        ours[0](torch.ones(2, 3))


def test_what_tools_look_at(P_world):
    """Hooks, texts, states and modes are those of the model."""
    model, ours = made(P_world, lambda: Nested(computed))
    assert list(ours.state_dict()) == list(model.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in model.named_parameters()]
    for path, module in model.named_modules():
        if path:
            distributed = ours.get_submodule(path)
            assert repr(distributed) == repr(module)
            assert type(distributed) is type(module)
            assert len(distributed._forward_pre_hooks) == len(module._forward_pre_hooks)
    assert ours.rest[0].weight.dim() == 2  # which is computed when somebody looks at it


def test_a_copy(P_world):
    _, ours = made(P_world)
    again = copy.deepcopy(ours)
    x = distdl.scatter(torch.rand(4, 3), ours.P_x)
    assert torch.equal(again(x), ours(x))
    assert_refused(again)


def test_hooks_that_are_given_afterwards(P_world):
    _, ours = made(P_world)
    x = distdl.scatter(torch.rand(4, 3), ours.P_x)
    seen = []
    ours.eval().stem.register_forward_hook(lambda module, args, y: seen.append(y))
    ours(x)
    assert len(seen) == 1
    assert_refused(ours)
