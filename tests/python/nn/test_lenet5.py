"""The example's network: a model of many layers, with ReLUs in place, is the sequential network."""

import sys
from pathlib import Path

import pytest
import torch

import distdl
from distdl.nn import DistributedCrossEntropyLoss
from support.ranks import job

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "lenet5"))
from model import GRIDS, distributed_lenet5, sequential_lenet5

BATCH, STEPS = 6, 3


def train(model, criterion, images, labels):
    """The losses of a few steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("size", [size for size in GRIDS if size <= job.size])
def test_trains_like_the_sequential_one(P_world, size):
    """Also where ranks have no part in it. The images are noise: the example's need its packages."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, 1, 28, 28, dtype=torch.float64, generator=generator)
    labels = torch.randint(10, (BATCH,), generator=generator)
    P = P_world.create_partition_inclusive(range(size))
    torch.manual_seed(1)
    model = distributed_lenet5(P, torch.float64)
    criterion = DistributedCrossEntropyLoss(P.create_cartesian_topology_partition([1, 1]))
    torch.manual_seed(1)
    twin = sequential_lenet5(torch.float64)
    expected = train(twin, torch.nn.CrossEntropyLoss(), images, labels)

    data = (images, labels) if job.rank == 0 else [distdl.zero_volume_tensor(BATCH, t.dtype) for t in (images, labels)]
    assert train(model, criterion, *data) == pytest.approx(expected, rel=1e-12)
    state = distdl.sequential_state_dict(model)
    for name, weight in twin.state_dict().items() if job.rank == 0 else ():
        torch.testing.assert_close(state[name], weight, rtol=0, atol=1e-11)
