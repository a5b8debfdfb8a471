"""Layers and models on a device, beside their twins on the CPU."""

import os
import random

import pytest
import torch

import distdl
from support.blocks import block_of, grid
from support.distributed import assert_equal_models
from support.families import EXAMPLES, splits
from support.models import Dense, Residual, Tokens
from support.ranks import job, together
from support.sequential import assert_equals_sequential
from support.training import KINDS, Twins


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_equals_the_twin(P_world, example, device):
    draw = random.Random(f"{os.environ.get('DISTDL_SEED')} {example.cuts}")
    layout = draw.choice(["owner", "sharded"])
    assert_equals_sequential(example, grid(P_world, draw.choice(splits(example))), layout=layout, device=device)


MODELS = {"residual": (Residual, (3, 2, 9, 7)), "dense": (Dense, (2, 2, 8, 6)), "tokens": (Tokens, (2, 2, 9, 10))}


@pytest.mark.parametrize("name", MODELS)
def test_distributed_models(name, device):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    assert_equal_models(make().double(), shape, [1, 1, job.size, *[1] * (len(shape) - 3)], device=device)


def trained(twins, model, first, last, optimizer):
    """Steps of training on the device of the model."""
    device = next(model.parameters()).device
    for number in range(first, last):
        x, target = (block_of(whole, twins.P_x).to(device) for whole in twins.batch(number))
        optimizer.zero_grad()
        twins.loss(model(x), target).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints(P_world, folder, kind, device):
    """A run on the device goes on from a file, with the weights of a run on the CPU."""
    twins, runs = Twins(P_world, kind), {}
    for place in ("cpu", device):
        model = Twins(P_world, kind).model.to(place)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        trained(twins, model, 0, 2, optimizer)
        distdl.save(folder / place, model, optimizer)
        other = Twins(P_world, kind, seed=5).model.to(place)
        resumed = torch.optim.Adam(other.parameters(), lr=0.05)
        distdl.load(folder / place, other, resumed)
        for run, steps in ((model, optimizer), (other, resumed)):
            trained(twins, run, 2, 4, steps)
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(model.parameters(), other.parameters(), strict=True))
        assert all(parameter.device.type == place for parameter in other.parameters())
        runs[place] = [parameter.detach().cpu() for parameter in other.parameters()]
    assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(runs["cpu"], runs[device], strict=True))


@pytest.mark.parametrize("cap", [None, 1e-4])
def test_replicas(P_world, cap, device):
    """Uneven parts of a batch."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(7, 6, generator=generator).double(), torch.randn(7, 3, generator=generator).double()
    own = slice(0, 4 + job.size % 2) if job.rank == 0 else slice(7, 7)
    if job.rank == job.size - 1 and job.size > 1:
        own = slice(4 + job.size % 2, 7)
    elif job.size == 1:
        own = slice(0, 7)
    torch.manual_seed(job.rank)
    model = distdl.DataParallel(torch.nn.Linear(6, 3).double().to(device), P_world, bucket_cap_mb=cap)
    torch.manual_seed(0)
    twin = torch.nn.Linear(6, 3).double()
    torch.nn.functional.mse_loss(twin(x), y).backward()
    loss = torch.nn.functional.mse_loss(model(x[own].to(device)), y[own].to(device))
    loss.backward()
    for parameter, expected in zip(model.module.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(parameter.grad.cpu(), expected.grad, rtol=1e-10)
        assert all(torch.equal(parameter.detach().cpu(), other) for other in together(parameter.detach().cpu()))
