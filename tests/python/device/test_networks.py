"""Four networks of the examples in one call each, trained on a device beside themselves on the CPU."""

import copy

import pytest
import torch

import distdl
from support.blocks import grid
from support.distributed import noise, step
from support.programs import load_program
from support.ranks import job, together


def example(path):
    """A module of the examples."""
    return load_program(f"examples/{path}")


def tokens(shape):
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(0))


NETWORKS = {
    "LeNet-5": lambda: (example("lenet5/model").sequential_lenet5(torch.float64), (noise((4, 1, 28, 28)),)),
    "3-d U-Net": lambda: (example("networks/unet").SequentialUNet3d(4).double(), (noise((1, 1, 28, 16, 20)),)),
    "FNO": lambda: (example("fno/model").in_one_process(4, 4, 2), (noise((2, 2, 17, 16)),)),
    "GPT": lambda: (example("networks/gpt").SequentialGPT().double(),
                    (tokens((2, 37)), torch.arange(37).expand(2, 37))),
}  # fmt: skip


def losses(model, inputs, gather=lambda y: y):
    """Of three steps of Adam."""
    optimizer, of_steps = torch.optim.Adam(model.parameters(), lr=1e-3), []
    for _ in range(3):
        optimizer.zero_grad()
        _, loss = step(lambda x: model(*x), inputs, gather)
        loss.backward()
        optimizer.step()
        of_steps.append(loss.item())
    return of_steps


@pytest.mark.parametrize("name", NETWORKS)
def test_training(P_world, device, name):
    torch.manual_seed(0)
    model, inputs = NETWORKS[name]()
    expected = losses(copy.deepcopy(model), inputs)
    split = [job.size if d == min(2, inputs[0].dim() - 1) else 1 for d in range(inputs[0].dim())]
    P_x = grid(P_world, split)
    ours = distdl.distribute(model, P_x).to(device)
    blocks = [distdl.scatter(x, P_x).detach().to(device) for x in inputs]
    measured = losses(ours, blocks, lambda y: distdl.gather(y, ours.output_partition))
    apart = [abs(a - b) <= 1e-9 * abs(b) for a, b in zip(together(measured)[0], expected, strict=True)]
    assert all(apart), (measured, expected)
