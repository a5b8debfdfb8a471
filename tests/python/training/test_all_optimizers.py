"""Every optimizer of torch.optim, in each way in which it computes, for parameters of one to five dimensions."""

import inspect

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.blocks import block_of, grid
from support.ranks import job
from support.training import KINDS

CLASSES = {name: kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind) and name != "Optimizer"}
WAYS = [
    (name, way)
    for name, kind in CLASSES.items()
    for way in ("", "foreach", "fused")
    if not way or way in inspect.signature(kind).parameters
]
LAYERS = {
    "Linear": (torch.nn.Linear(3, 4), (5, 3)),
    "Conv1d": (torch.nn.Conv1d(2, 3, 2), (5, 2, 4)),
    "Conv2d": (torch.nn.Conv2d(2, 3, 2), (5, 2, 4, 3)),
    "Conv3d": (torch.nn.Conv3d(2, 1, 2), (5, 2, 2, 3, 2)),
}


def layers_of(P_world, kind):
    """torch's layers, and the same ones in blocks of rows, with their inputs."""
    with distdl.parameter_layout(kind):
        for number, (name, (layer, shape)) in enumerate(LAYERS.items()):
            P_x = grid(P_world, [job.size, *[1] * (len(shape) - 1)])
            twin = type(layer)(*[getattr(layer, key) for key in _arguments(layer)])
            twin.to(torch.float64)
            draw = torch.Generator().manual_seed(number)
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=draw))
            x = torch.randn(shape, dtype=torch.float64, generator=draw)
            yield twin, getattr(dnn, f"Distributed{name}").from_sequential(twin, P_x), x, block_of(x, P_x)


def _arguments(layer):
    if isinstance(layer, torch.nn.Linear):
        return ("in_features", "out_features")
    return ("in_channels", "out_channels", "kernel_size")


def trained(pairs, name, way, with_closure, tell):
    """Train layers on their inputs. What a step raised, on all ranks alike."""
    parameters = [parameter for layer, _ in pairs for parameter in layer.parameters()]
    if name == "Muon":
        parameters = [parameter for parameter in parameters if parameter.dim() == 2]

    def closure():
        optimizer.zero_grad()
        losses = [layer(x).tanh().square().sum() for layer, x in pairs]
        torch.autograd.backward(losses)
        return sum(loss.detach() for loss in losses)

    optimizer = CLASSES[name](parameters, lr=0.02, **({way: True} if way else {}))
    for _ in range(1 if name == "LBFGS" else 4):
        error = None
        try:
            if with_closure or name == "LBFGS":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}".split(" (raised on rank")[0]
        errors = tell(error)
        assert errors == errors[:1] * len(errors)
        if error is not None:
            return error
    return None


@pytest.mark.shared
@pytest.mark.parametrize("with_closure", [False, True], ids=["", "closure"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "way"), WAYS, ids=lambda value: value or "plain")
def test_steps_are_those_of_torch_or_refused_on_all_ranks(P_world, name, way, kind, with_closure):
    layers = list(layers_of(P_world, kind))
    expected = trained([(twin, x) for twin, _, x, _ in layers], name, way, with_closure, lambda error: [error])
    error = trained([(layer, block) for _, layer, _, block in layers], name, way, with_closure, job.allgather)
    if error is not None:
        refused = f"torch.optim.{name} " in error and name in ("Adafactor", "LBFGS", "Muon") and job.size > 1
        assert refused or expected is not None, error
        return
    assert expected is None
    states = [distdl.sequential_state_dict(layer) for _, layer, _, _ in layers]
    if job.rank > 0:
        return
    for (twin, *_), state in zip(layers, states, strict=True):
        for key, value in twin.state_dict().items():
            # Muon computes in bfloat16 on the way.
            torch.testing.assert_close(state[key], value, rtol=1e-2 if name == "Muon" else 1e-8, atol=1e-10)
