"""Times models that distdl.distribute has split on two ranks, beside the same models written with our layers by hand.

mpiexec -n 2 python -m mpi4py benchmarks/distribute.py

A training step, forward and backward, of ResNet-18 and ResNet-50 on an image of 512 squared, and of a 3-d U-Net on a
volume of 96 cubed; and a call of many tiny layers, for what each operation of a distributed model costs beside the
layers by hand. ResNet-50 is torchvision's, which benchmarks/models.py says how to install.

Beside medians of the time: by how much a step lets the process grow at its peak, on the rank that grows most, beyond
the model with its gradients; and how many bytes of tensors all ranks together send in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from contestants import Contestant
from layers import grid
from mpi4py import MPI
from peak import growth
from report import machine, save
from timing import measure

import distdl
from distdl import Partition, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "networks"))
from resnet import ResNet18, SequentialResNet18
from unet import SequentialUNet3d, UNet3d

WAYS = "one thread", "by hand", "distribute"
HEADER = f"{'':32}" + "".join(f"{way:>11}" for way in WAYS) + f"{'/ by hand':>11}{'speed-up':>10}"
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A model of torch.nn, the same with our layers, and its input, whose rows are split."""

    name: str
    sequential: Callable[[], torch.nn.Module]
    by_hand: Callable[[Partition], torch.nn.Module]
    shape: tuple[int, ...]


class Chain(torch.nn.Module):
    """Activations one behind the other."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through all of them."""
        result: torch.Tensor = self.layers(x)
        return result


def resnet_by_hand(P: Partition) -> torch.nn.Module:
    """Its scores come on the first worker."""
    model: torch.nn.Module = ResNet18(grid(P, 1, 1, P.size, 1), grid(P, 1, 1))
    return model


def resnet50() -> torch.nn.Module:
    """That of torchvision."""
    from zoo.torchvision import vision

    model: torch.nn.Module = vision.resnet50(weights=None)
    return model


def resnet50_by_hand(P: Partition) -> torch.nn.Module:
    """The same with our layers in the place of torch's. Its scores come on the first worker."""
    P_x, P_y = grid(P, 1, 1, P.size, 1), grid(P, 1, 1)
    model = resnet50()
    for path, module in [*model.named_modules()]:
        kind = nn.SEQUENTIAL.get(type(module))
        if kind is not None and kind is not nn.DistributedLinear:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, kind.from_sequential(module, P_x))
    model.avgpool = torch.nn.Sequential(model.avgpool, nn.DistributedFlatten(P_x, P_y=P_y))
    model.fc = nn.DistributedLinear.from_sequential(model.fc, P_y)
    return model


def cases(only: str) -> Iterator[Case]:
    """By name."""
    known = [
        Case("ResNet-18, 1 x 3 x 512 x 512", SequentialResNet18, resnet_by_hand, (1, 3, 512, 512)),
        Case("ResNet-50, 1 x 3 x 512 x 512", resnet50, resnet50_by_hand, (1, 3, 512, 512)),
        Case("3-d U-Net, 96 cubed", SequentialUNet3d, lambda P: UNet3d(grid(P, 1, 1, P.size, 1, 1)),
             (1, 1, 96, 96, 96)),
        Case("200 ReLUs of 16 elements", lambda: Chain(200), lambda P: Chain(200), (1, 1, 4, 4)),
        Case("AvgPool2d of 16 elements", lambda: torch.nn.AvgPool2d(1), lambda P: nn.DistributedAvgPool2d(
            grid(P, 1, 1, P.size, 1), 1), (1, 1, 4, 4)),
    ]  # fmt: skip
    return (case for case in known if only in case.name)


def step(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Forward and backward."""

    def run() -> torch.Tensor:
        y: torch.Tensor = model(x)
        y.sum().backward()
        return y

    return run


def measured(case: Case, comm: MPI.Intracomm, layout: str, repeats: int, seconds: float) -> dict[str, list[float]]:
    """Of each way to compute: milliseconds, MiB of memory, and MiB sent."""
    P = Partition(comm)
    split = [1] * len(case.shape)
    split[2] = P.size
    P_x = grid(P, *split)
    torch.manual_seed(0)
    whole = torch.randn(case.shape)
    block = distdl.scatter(whole, P_x)
    sequential = case.sequential()
    alone = step(sequential, whole.clone().requires_grad_()) if comm.rank == 0 else lambda: whole
    with distdl.parameter_layout(layout):
        by_hand = step(case.by_hand(P), block.clone().requires_grad_())
        ours = step(distdl.distribute(sequential, P_x), block.clone().requires_grad_())
    contestants = [Contestant(way, run) for way, run in zip(WAYS, (alone, by_hand, ours), strict=True)]
    calls = 1 if whole.numel() > 1000 else 100
    times = measure(contestants, comm, repeats, seconds, calls)
    memory, sent = zip(*(needs(contestant.run, comm) for contestant in contestants), strict=True)
    return {"ms": [float(time) * 1e3 for time in np.median(times, axis=1)], "memory": [*memory], "sent": [*sent]}


def needs(run: Callable[[], torch.Tensor], comm: MPI.Intracomm) -> tuple[float, float]:
    """MiB of memory at the peak of a step, on the rank that needs most, and MiB that all ranks send in it."""
    distdl.memory.empty_pool()
    distdl.reset_comm_stats()
    comm.Barrier()
    grown = growth(run)[0]
    sent = sum(stats.bytes_sent for stats in distdl.comm_stats().values())
    return max(comm.allgather(grown)) / MIB, sum(comm.allgather(sent)) / MIB


def _line(what: str, figures: list[float]) -> str:
    return f"  {what:30}" + "".join(f"{figure:11.3f}" for figure in figures)


def main() -> None:
    """Print the table, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the names of the models")
    parser.add_argument("--layout", default="replicated", help="of the parameters: owner, sharded or replicated")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, for a model")
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    rows = []
    if comm.rank == 0:
        print(machine(), HEADER, sep="\n", flush=True)
    for case in cases(arguments.only):
        row = measured(case, comm, arguments.layout, arguments.repeats, arguments.seconds)
        rows.append({"model": case.name, **row})
        if comm.rank == 0:
            alone, by_hand, ours = row["ms"]
            print(case.name)
            print(_line("ms", row["ms"]), f"{ours / by_hand:10.2f}{alone / ours:10.2f}")
            print(_line("MiB of memory", row["memory"]), _line("MiB sent", row["sent"]), sep="\n", flush=True)
    if comm.rank == 0 and arguments.json:
        save({"machine": machine(), "models": rows}, arguments.json)


if __name__ == "__main__":
    main()
