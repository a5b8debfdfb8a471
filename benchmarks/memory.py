"""Compares the memory of a step of training that distdl.report tells with the growth of the processes.

python benchmarks/memory.py --ranks 1 2 4

Each model is trained on its ranks for three steps with Adam. Measured is the growth of the resident memory of the
rank that grows most: from before the model is made to the peak of the third step. Linux; glibc gives each tensor of
256 KiB or more its own memory, so that freed memory does not count.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from mpi4py import MPI
from peak import _status
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import distdl

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "networks"))
from gpt import SequentialGPT
from unet import SequentialUNet3d

from distdl.nn.fourier.sequential import SpectralConv2d

MIB = 1 << 20
MODES = ("float32", "bfloat16", "checkpoints")


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b, kernel, s in ((before, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)):
            layers += [nn.Conv2d(a, b, kernel, s, padding=kernel // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Sequential()
        if stride > 1 or before != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


def resnet50() -> nn.Sequential:
    """The network of He et al. (2016)."""
    blocks: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    blocks.append(nn.MaxPool2d(3, 2, padding=1))
    before = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(count):
            blocks.append(Bottleneck(before, width, 2 if i == 0 and width > 64 else 1))
            before = 4 * width
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


class FourierLayer(nn.Module):
    """A convolution of frequencies beside one of points."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spectral, self.skip = SpectralConv2d(width, width, 24), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.spectral(x) + self.skip(x))


def fno() -> nn.Sequential:
    """A Fourier neural operator."""
    return nn.Sequential(nn.Conv2d(2, 32, 1), *(FourierLayer(32) for _ in range(4)), nn.Conv2d(32, 1, 1))


class Checkpointed(nn.Module):
    """A module whose forward pass is computed again in the backward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.module, x, use_reentrant=False)
        return result


class WithLoss(nn.Module):
    """The mean square of a model's result."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *x: Tensor) -> Tensor:
        return self.module(*x).float().square().mean()


def checkpointed(model: nn.Module) -> nn.Module:
    """The model with its large modules in checkpoints."""
    if isinstance(model, SequentialUNet3d):
        for stages in (model.down, model.up):
            for i, stage in enumerate(stages):
                stages[i] = Checkpointed(stage)
        return model
    parts = model.blocks if isinstance(model, SequentialGPT) else model
    for i, part in enumerate(parts):
        if isinstance(part, nn.Module) and len([*part.children()]) > 1:
            parts[i] = Checkpointed(part)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...], int]] = {
    "3-d U-Net": (lambda: SequentialUNet3d(12), (1, 1, 64, 64, 64), (1, 1, 16, 16, 16), 2),
    "ResNet-50": (resnet50, (4, 3, 192, 192), (4, 3, 32, 32), 2),
    "GPT": (lambda: SequentialGPT(4000, 384, 6, 6, 512), (4, 512), (4, 16), 1),
    "FNO": (fno, (4, 2, 192, 192), (4, 2, 48, 48), 2),
}
"""The model, the shapes of its inputs and of those of a first step, and the dimension in which they are split."""


def inputs_of(name: str, shape: tuple[int, ...]) -> list[Tensor]:
    """The whole inputs of a model."""
    if name == "GPT":
        return [torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)]
    return [torch.rand(shape)]


def measured(name: str, mode: str, comm: MPI.Intracomm) -> tuple[float, distdl.models.Report]:
    """The growth of the fullest rank in bytes, and the report."""
    make, shape, small, dim = MODELS[name]
    splits = [comm.size if d == dim else 1 for d in range(len(shape))]
    P_x = distdl.Partition(comm).create_cartesian_topology_partition(splits)

    def made() -> nn.Module:
        return WithLoss(checkpointed(make()) if mode == "checkpoints" else make())

    def cast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=mode == "bfloat16")

    def growth(blocks: list[Tensor]) -> int:
        """The growth of this process at the peak of a third step."""
        before, grown = _status("VmRSS") - sum(x.nbytes for x in blocks), 0
        model = distdl.distribute(made(), P_x)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        for _ in range(3):
            Path("/proc/self/clear_refs").write_text("5")
            optimizer.zero_grad()
            with cast():
                loss = model(*blocks)
            loss.backward()
            optimizer.step()
            grown = _status("VmHWM") - before
        return grown

    with torch.device("meta"):
        planned = made()
    with cast():
        told = distdl.report(planned, P_x=splits, shape=[x.to("meta") for x in inputs_of(name, shape)])
    growth([x[P_x.slices(small)].clone() for x in inputs_of(name, small)])  # loads what a first step loads
    blocks = [x[P_x.slices(shape)].clone() for x in inputs_of(name, shape)]
    _tidy()
    return max(comm.allgather(growth(blocks))), told


def _tidy() -> None:
    gc.collect()
    distdl.memory.empty_pool()
    ctypes.CDLL(None).malloc_trim(0)


def run_one(name: str, mode: str) -> None:
    """Print a row, on the ranks of this job."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    comm = MPI.COMM_WORLD
    grown, told = measured(name, mode, comm)
    if comm.rank == 0:
        ratio = told.step.total / grown
        print(
            f"{name:10} {mode:12} {comm.size} {told.step.total / MIB:8.1f} {grown / MIB:9.1f} {ratio:6.2f}",
            told.step,
            flush=True,
        )


def main() -> None:
    """Print a row for each model, mode and number of ranks, each of a job of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--only", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        run_one(*options.row)
        return
    print("model      mode         ranks told  measured  ratio  told of what (MiB)")
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 18), "MALLOC_TRIM_THRESHOLD_": str(1 << 18)}
    for name, mode, ranks in itertools.product(options.only, options.modes, options.ranks):
        command = ["mpiexec", "-n", str(ranks), sys.executable, "-m", "mpi4py", __file__, "--row", name, mode]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        print(done.stdout.rstrip() or f"{name} {mode} {ranks}: {done.stderr[-800:]}", flush=True)


if __name__ == "__main__":
    main()
