"""Weights that are computed from norms of others, where parts of these are zero, infinite or empty."""

import math

import pytest
import torch
from torch.nn.utils import parametrizations, prune

import distdl
from support.blocks import grid
from support.distributed import assert_equal_models, noise, partitions
from support.ranks import job, together
from support.sequential import close
from support.training import KINDS

NORMS = {
    "weight_norm": parametrizations.weight_norm,
    "weight_norm of all": lambda layer: parametrizations.weight_norm(layer, dim=None),
    "weight_norm along features": lambda layer: parametrizations.weight_norm(layer, dim=1),
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "weight_norm of before": torch.nn.utils.weight_norm,
    "spectral_norm of before": torch.nn.utils.spectral_norm,
}
VALUES = {"plain": None, "zero row": 0.0, "infinite row": math.inf, "zero": "all"}


def made(norm, value):
    """Two layers with such weights."""
    torch.manual_seed(0)
    layers = [norm(torch.nn.Linear(5, 3).double()), torch.nn.Tanh(), norm(torch.nn.Linear(3, 2).double())]
    with torch.no_grad():
        for parameter in layers[0].parameters():
            if value == "all":
                parameter.zero_()
            elif value is not None and parameter.dim() == 2 and len(parameter) > 1:
                parameter[-1] = value
    return torch.nn.Sequential(*layers)


def twice(model, x):
    """The result of a call; then the gradients of the model are those of a loss and of a penalty of its gradients."""
    y = model(x)
    loss = y.square().sum()
    first = torch.autograd.grad(loss, [x], create_graph=True, allow_unused=True, materialize_grads=True)
    (loss + sum(g.square().sum() for g in first)).backward()
    return y.detach(), [g.detach() for g in first]


@pytest.mark.ranks(2, 3)
@pytest.mark.drawn(24)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", NORMS)
def test_values_and_derivatives_are_those_of_torch(P_world, name, value, kind):
    model = made(NORMS[name], VALUES[value])
    P_x = grid(P_world, [job.size, 1])
    with distdl.parameter_layout(kind):
        ours = distdl.distribute(model, P_x)
    whole = noise((4, 5)).requires_grad_()
    x = distdl.scatter(whole.detach(), P_x).detach().requires_grad_()
    y, first = twice(model, whole)
    our_y, our_first = twice(ours, x)
    for part, expected in ((our_y, y), (our_first[0], first[0]), (x.grad, whole.grad)):
        assert close(torch.cat(together(part)), expected, 1e-10), (part, expected)
    gradients, state = distdl.sequential_gradients(ours), distdl.sequential_state_dict(ours)
    for key, parameter in model.named_parameters() if job.rank == 0 else ():
        assert close(gradients[key], parameter.grad, 1e-9), (key, gradients[key], parameter.grad)
    for key, tensor in model.state_dict().items() if job.rank == 0 else ():
        assert close(state[key], tensor, 1e-10), (key, state[key], tensor)


LAYERS = {
    "Linear": (lambda: torch.nn.Linear(5, 5), (4, 6, 5)),
    "Conv2d": (lambda: torch.nn.Conv2d(4, 4, 3, padding=1), (2, 4, 6, 5)),
    "ConvTranspose2d": (lambda: torch.nn.ConvTranspose2d(4, 4, 3, padding=1), (2, 4, 6, 5)),
    "GroupNorm": (lambda: torch.nn.GroupNorm(2, 4), (2, 4, 6, 5)),
    "LayerNorm": (lambda: torch.nn.LayerNorm(5), (4, 6, 5)),
}


class Squared(torch.nn.Module):
    """A sum of squares of what a layer adds: it takes any shape that broadcasts."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return (x + self.layer(x)).square().mean()


@pytest.mark.parametrize("name", LAYERS)
def test_a_weight_that_was_registered_after_the_bias(name):
    make, shape = LAYERS[name]
    torch.manual_seed(4)
    model = Squared(make()).double()
    weight = torch.nn.Parameter(torch.rand_like(model.layer.weight))
    del model.layer.weight
    model.layer.weight = weight
    assert [own for own, _ in model.layer.named_parameters()] == ["bias", "weight"]
    for split in partitions(len(shape)):
        assert_equal_models(model, shape, split)


COMPUTING = {
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "pruned twice": lambda layer: prune.random_structured(
        prune.l1_unstructured(layer, "weight", 0.3), "weight", amount=1, dim=0
    ),
    "pruned bias": lambda layer: prune.random_unstructured(layer, "bias", amount=2),
    "spectral_norm of before": torch.nn.utils.spectral_norm,
    "weight_norm of before": torch.nn.utils.weight_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.parametrize("name", COMPUTING)
def test_hooks_that_compute_weights(P_world, name, is_called):
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
    COMPUTING[name](model[0])
    if is_called:
        model(noise((2, 5)))
    whole, P_x = noise((4, 5)), grid(P_world, [job.size, 1])
    ours = distdl.distribute(model, P_x)
    y = distdl.gather(ours(distdl.scatter(whole, P_x)), P_x)
    (y * y).sum().backward()
    gradients = distdl.sequential_gradients(ours)
    if job.rank == 0:
        expected = model(whole)
        model.zero_grad()
        (expected * expected).sum().backward()
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        own = {key: parameter.grad for key, parameter in model.named_parameters()}
        torch.testing.assert_close(gradients, own, rtol=1e-10, atol=1e-11)
