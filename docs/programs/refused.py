import textwrap
from collections.abc import Callable

import torch

import distdl

world = distdl.Partition()
P_x = world.create_cartesian_topology_partition([2, 1])
x = distdl.scatter(torch.arange(8.0).reshape(4, 2) if world.rank == 0 else None, P_x)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x / self.calls


class CountingInBuffer(torch.nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x / self.calls


def branches(x: torch.Tensor) -> torch.Tensor:
    return x / 10 if x.abs().max() > 5 else x


def chooses(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs().max() > 5, x / 10, x)


def selects(x: torch.Tensor) -> torch.Tensor:
    return x[x.sum(1).nonzero()[:, 0]].sum(0)


def masks(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.sum(1, keepdim=True) != 0, x, 0).sum(0)


def segments(x: torch.Tensor) -> torch.Tensor:
    return torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 3]))


def show(model: torch.nn.Module | Callable[..., object], **options: str) -> None:
    try:
        distdl.distribute(model, P_x, **options)(x)
        text = "is computed"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    if world.rank == 0:
        name = getattr(model, "__name__", type(model).__name__)
        print(textwrap.fill(f"{name}: {text}", 88, subsequent_indent="    "), end="\n\n")


for model in (branches, chooses, selects, masks, Counting(), CountingInBuffer(), segments):
    show(model)
show(branches, values="agree")
show(selects, values="agree")
show(segments, fallback="gather")
