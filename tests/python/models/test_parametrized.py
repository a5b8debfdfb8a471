"""Weights that are computed from norms of others, where parts of these are zero, infinite or empty."""

import math

import pytest
import torch
from torch.nn.utils import parametrizations

import distdl
from support.blocks import grid
from support.distributed import noise
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
