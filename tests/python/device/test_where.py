"""Where tensors are: those that a model makes while it is called, blocks of scattered tensors, and mistakes."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import distdl
from support.blocks import grid
from support.distributed import assert_none, noise, off, step
from support.models import Function
from support.ranks import job, raises_everywhere

NUMBERS = torch.arange(5.0, dtype=torch.float64)


class Positions(torch.nn.Module):
    """Adds embeddings of positions, as a GPT or a ViT does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(9, 5, dtype=torch.float64)

    def forward(self, x):
        return x + self.table(torch.arange(x.shape[0], device=x.device))


class OwnTensor(torch.nn.Module):
    """Has a tensor that is no buffer, so that the model does not bring it to a device."""

    def __init__(self, other):
        super().__init__()
        self.numbers, self.other = NUMBERS, other

    def forward(self, x):
        return x * (self.numbers.to(x.device) if self.other is None else self.numbers.to(x))


class Recomputed(torch.nn.Module):
    def forward(self, x):
        return checkpoint(lambda x: (x * torch.linspace(0, 1, 5, device=x.device, dtype=x.dtype)).sin(), x,
                          use_reentrant=False)  # fmt: skip


class Wide(torch.nn.Module):
    """Has a part without autocast, as embeddings of rotations have."""

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return (x @ torch.ones(5, 5, dtype=x.dtype, device=x.device)).cos()


MODELS = {
    "positions": Positions,
    "zeros": lambda: Function(lambda x: torch.cat([x, torch.zeros(1, 5, dtype=x.dtype, device=x.device)])),
    "values": lambda: Function(lambda x: x + torch.tensor([1.0, 2, 3, 4, 5], dtype=x.dtype, device=x.device)),
    "mask": lambda: Function(lambda x: x.masked_fill(torch.ones(5, 5, device=x.device).tril()[:1] == 0, -1.0)),
    "moved": lambda: Function(lambda x: x * torch.arange(5.0, dtype=x.dtype).to(x.device)),
    "a tensor of its own": lambda: OwnTensor(None),
    "a tensor of its own, as the input": lambda: OwnTensor("x"),
    "in a checkpoint": Recomputed,
    "without autocast": Wide,
}


@pytest.mark.parametrize("moved", ["before", "after", "after a call"])
@pytest.mark.parametrize("name", MODELS)
def test_tensors_that_a_model_makes(P_world, device, name, moved):
    model, x, P_x = MODELS[name](), noise((7, 5)).requires_grad_(), grid(P_world, [job.size, 1])
    (expected,), loss = step(model, x)
    loss.backward()
    ours = distdl.distribute(model.to(device) if moved == "before" else model, P_x)
    if moved == "after a call":
        ours(distdl.scatter(x, P_x))
    ours.to(device)
    whole = x.detach().to(device).requires_grad_()
    (y,), loss = step(ours, distdl.scatter(whole, P_x), lambda y: distdl.gather(y, ours.output_partition))
    loss.backward()
    assert y.device.type == device
    assert_none([] if job.rank else off(y.detach().cpu(), expected.detach()) + off(whole.grad.cpu(), x.grad))


@pytest.mark.ranks(2, 3, 4)
def test_scattered_blocks_are_on_the_device_of_what_a_rank_passes(P_world, device):
    P_x, x = grid(P_world, [job.size, 1]), noise((7, 5))
    assert distdl.scatter(x.to(device), P_x).device.type == device
    assert distdl.scatter(x.to(device) if job.rank == 0 else x, P_x).device.type == ("cpu" if job.rank else device)
    assert distdl.scatter(x.to(device) if job.rank == 0 else None, P_x).device.type == ("cpu" if job.rank else device)


MISTAKES = {
    "convolution": lambda P: distdl.nn.DistributedConv1d(P, 2, 2, 3, padding=1),
    "batch norm": lambda P: distdl.nn.DistributedBatchNorm1d(P, 2),
    "group norm": lambda P: distdl.nn.DistributedGroupNorm(P, 1, 2),
    "model": lambda P: distdl.distribute(torch.nn.Sequential(torch.nn.Conv1d(2, 2, 3), torch.nn.BatchNorm1d(2)), P),
}


@pytest.mark.parametrize("is_layer_moved", [True, False])
@pytest.mark.parametrize("name", MISTAKES)
def test_an_input_on_another_device_than_the_weights(P_world, device, name, is_layer_moved):
    """On the last rank alone: all raise."""
    layer = MISTAKES[name](grid(P_world, [1, 1, job.size])).to(device if is_layer_moved else "cpu")
    x = torch.ones(2, 2, 4, device="cpu" if is_layer_moved else device)
    x = x if job.rank == job.size - 1 else x.to(device if is_layer_moved else "cpu")
    raises_everywhere(RuntimeError, f"of rank {job.size - 1} is on .*, and the weights are on", lambda: layer(x))


def test_a_target_on_another_device_than_the_input(P_world, device):
    loss, x = distdl.nn.DistributedMSELoss(grid(P_world, [job.size, 1])), torch.ones(2, 2, device=device)
    target = x.cpu() if job.rank == 0 else x
    raises_everywhere(RuntimeError, "the target of rank 0 is on cpu, and the first argument", lambda: loss(x, target))
