"""Training at sizes that people use: resident memory stays within 1 % from step 20 to step 300.

``bash tests/commands.sh memory`` runs it, every week, for up to an hour. DISTDL_STEPS is the number of steps.
pytest does not collect this file by itself.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

import distdl
from support.blocks import grid
from support.ranks import job, together

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "networks"))

from gpt import SequentialGPT
from resnet import SequentialResNet18
from unet import SequentialUNet3d

STEPS, WARM = int(os.environ.get("DISTDL_STEPS", "300")), 20


class Tokens(torch.nn.Module):
    """A GPT whose places follow from its tokens."""

    def __init__(self):
        super().__init__()
        self.gpt = SequentialGPT(tokens=256, features=192, heads=6, layers=4, longest=256)

    def forward(self, tokens):
        return self.gpt(tokens, torch.arange(256))


NETWORKS = {
    "U-Net of 64 cubed": (
        lambda: SequentialUNet3d(8, 2),
        lambda: torch.randn(1, 1, 64, 64, 64),
        [1, 1, 1, 1, job.size],
    ),
    "ResNet-18, 4 images of 224 squared": (
        SequentialResNet18,
        lambda: torch.randn(4, 3, 224, 224),
        [1, 1, job.size, 1],
    ),
    "GPT of 256 tokens": (Tokens, lambda: torch.randint(256, (4, 256)), [1, job.size]),
}


def resident():
    """Bytes of this process that are in memory, the most of all ranks."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return max(together(pages * os.sysconf("SC_PAGE_SIZE")))


@pytest.mark.parametrize("name", NETWORKS)
def test_memory_stays(P_world, name, capsys):
    make, data, shape = NETWORKS[name]
    torch.manual_seed(0)
    P_x = grid(P_world, shape)
    model = distdl.distribute(make(), P_x)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x = distdl.scatter(data(), P_x).detach()
    held = []
    for step in range(STEPS):
        optimizer.zero_grad()
        y = model(x)
        y.square().mean().backward()
        optimizer.step()
        if step >= WARM:
            held.append(resident())
            if step % 20 == 0 and job.rank == 0:
                with capsys.disabled():
                    print(f"\n  {name}, step {step}: {held[-1] >> 20} MiB", end="", flush=True)
    # Within a few steps malloc takes and returns some percent.
    assert min(held[-10:]) <= 1.01 * min(held[:10]), held
