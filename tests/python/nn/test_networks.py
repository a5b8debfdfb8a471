"""Whole networks, written as the documentation says, are their sequential twins: uneven blocks, training mode, float64.

They are those of examples/networks.
"""

import sys
from pathlib import Path

import pytest
import torch

import distdl
import distdl.nn as dnn
from support.ranks import job, together
from support.sequential import block, joined, layouts_of, parameter_slices

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "networks"))
from encoder import Encoder, SequentialEncoder
from gpt import GPT, SequentialGPT
from resnet import ResNet18, SequentialResNet18
from unet import SequentialUNet3d, UNet3d

pytestmark = pytest.mark.ranks(2, 3, 4)


def workers(P_world, shape):
    """The first ranks as a grid."""
    return P_world.create_cartesian_topology_partition(shape)


def same_training(twin, model, whole_loss, loss):
    """First values, the loss and all gradients, twice with a step of the optimizer between, and the buffers."""
    twin.double()
    state = distdl.sequential_state_dict(model)
    assert not state or all(torch.equal(state[name].double(), value) for name, value in twin.state_dict().items())
    model.double()
    layouts = layouts_of(model)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (twin, model)]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected, result = whole_loss(), loss()
        expected.backward()
        result.backward()
        assert all(abs(number - expected.item()) <= 1e-12 * abs(expected.item()) for number in together(result.item()))
        gradients = {name: parameter.grad for name, parameter in twin.named_parameters()}
        scale = max(float(g.abs().max()) for g in gradients.values())
        for name, parameter in model.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            whole = joined(gradient, gradients[name].shape, parameter_slices(layouts[name]))
            assert (whole - gradients[name]).abs().max() <= 1e-10 * scale, name
        for optimizer in optimizers:
            optimizer.step()
    state = distdl.sequential_state_dict(model)
    for name, value in twin.state_dict().items() if state else ():
        assert torch.allclose(state[name], value, rtol=1e-10, atol=1e-10), name


IMAGES = {2: [[1, 1, 2, 1], [2, 1, 1, 1]], 3: [[1, 1, 1, 3]], 4: [[1, 1, 2, 2], [2, 1, 1, 2], [1, 1, 4, 1]]}


@pytest.mark.parametrize("shape", IMAGES.get(job.size, []), ids=str)
def test_resnet(P_world, shape):
    P_x, P_y = workers(P_world, shape), workers(P_world, [shape[0], 1])
    torch.manual_seed(0)
    twin = SequentialResNet18(width=4)
    torch.manual_seed(0)
    model = ResNet18(P_x, P_y, width=4)
    images = torch.randn(3, 3, 37, 43, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([1, 7, 4])
    criterion, criterion_y = torch.nn.CrossEntropyLoss(), dnn.DistributedCrossEntropyLoss(P_y)
    own, own_labels = block(images, P_x, (0, 1, 2, 3)), block(labels, P_y, (0,))
    same_training(twin, model, lambda: criterion(twin(images), labels), lambda: criterion_y(model(own), own_labels))


VOLUMES = {2: [[1, 1, 2, 1, 1]], 3: [[1, 1, 1, 3, 1]], 4: [[1, 1, 2, 1, 2], [2, 1, 1, 2, 1]]}


@pytest.mark.parametrize("shape", VOLUMES.get(job.size, []), ids=str)
def test_unet(P_world, shape):
    P_x = workers(P_world, shape)
    torch.manual_seed(0)
    twin = SequentialUNet3d(channels=4)
    torch.manual_seed(0)
    model = UNet3d(P_x, channels=4)
    generator = torch.Generator().manual_seed(1)
    volumes = torch.randn(2, 1, 12, 20, 8, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, (2, 12, 20, 8), generator=generator)
    criterion, criterion_x = torch.nn.CrossEntropyLoss(), dnn.DistributedCrossEntropyLoss(P_x)
    own, own_labels = block(volumes, P_x, (0, 1, 2, 3, 4)), block(labels, P_x, (0, 2, 3, 4))
    same_training(twin, model, lambda: criterion(twin(volumes), labels), lambda: criterion_x(model(own), own_labels))


SEQUENCES = {2: [[1, 2], [2, 1]], 3: [[1, 3]], 4: [[2, 2], [1, 4]]}


@pytest.mark.parametrize("shape", SEQUENCES.get(job.size, []), ids=str)
@pytest.mark.parametrize("kind", ["encoder", "gpt"])
def test_transformers(P_world, kind, shape):
    P_x, P_tokens = workers(P_world, [*shape, 1]), workers(P_world, shape)
    P_heads, P_flat = workers(P_world, [shape[0], 1, shape[1], 1]), workers(P_world, [job.size, 1])
    torch.manual_seed(0)
    twin = SequentialGPT() if kind == "gpt" else SequentialEncoder()
    torch.manual_seed(0)
    model = GPT(P_x, P_tokens, P_heads) if kind == "gpt" else Encoder(P_x, P_tokens)
    text = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))
    tokens, targets, places = text[:, :-1], text[:, 1:], torch.arange(11).expand(3, 11)
    own_tokens, own_targets, own_places = (block(tensor, P_tokens, (0, 1)) for tensor in (tokens, targets, places))
    criterion, criterion_x = torch.nn.CrossEntropyLoss(), dnn.DistributedCrossEntropyLoss(P_flat)
    same_training(
        twin,
        model,
        lambda: criterion(twin(tokens, places).flatten(0, 1), targets.flatten()),
        lambda: criterion_x(model(own_tokens, own_places).flatten(0, 1), own_targets.flatten()),
    )
