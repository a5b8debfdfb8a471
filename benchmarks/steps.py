"""Compares the time of a training step that distdl.plans estimates with the time that it takes, for three networks.

python benchmarks/emulated_hosts.py --hosts 4 --ranks 4 --delay 50 benchmarks/steps.py

The tensors are small, so that a step takes the time of its messages also where ranks share cores.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch

import distdl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "fno"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "networks"))
import model as fno
from gpt import SequentialGPT
from unet import SequentialUNet3d

REPEATS = 5

Network = tuple[Callable[[], torch.nn.Module], torch.Tensor, Callable[[int], list[int]]]


def networks(side: int) -> dict[str, Network]:
    """Networks, their inputs without values, and how these are split among a number of ranks."""

    def squares(ranks: int) -> list[int]:
        rows = 2 ** (int(math.log2(ranks)) // 2)
        return [1, 1, rows, ranks // rows]

    tokens = torch.empty(2, 16 * side, dtype=torch.long, device="meta")
    return {
        "3-d U-Net": (
            lambda: SequentialUNet3d(8),
            torch.empty(1, 1, 2 * side, 2 * side, side, device="meta"),
            lambda ranks: [*squares(ranks), 1],
        ),
        "FNO": (lambda: fno.in_one_process().float(), torch.empty(1, 2, 4 * side, 4 * side, device="meta"), squares),
        "GPT": (lambda: Text(64, 32, 4, 2, 16 * side), tokens, lambda ranks: [1, ranks]),
    }


class Text(torch.nn.Module):
    """A GPT of tokens in their order."""

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, longest: int) -> None:
        super().__init__()
        self.gpt = SequentialGPT(vocabulary, width, heads, depth, longest)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.gpt(tokens, torch.arange(tokens.shape[1], device=tokens.device))


def measured(step: Callable[[], None], world: distdl.Partition) -> float:
    """The median of the slowest rank's times."""
    times = []
    for _ in range(2 + REPEATS):
        world.allreduce_data([0.0])
        start = perf_counter()
        step()
        times.append(max(world.allgather_data([perf_counter() - start]))[0])
    return statistics.median(times[2:])


def main() -> None:
    """Print a row for each network."""
    world = distdl.Partition()
    torch.set_num_threads(1)
    for name, (make, like, splits_of) in networks(int(sys.argv[1]) if len(sys.argv) > 1 else 16).items():
        torch.manual_seed(0)
        network = make()
        P_x = world.create_cartesian_topology_partition(splits_of(world.size))
        ours = distdl.distribute(network, P_x)
        shape = [part.stop - part.start for part in P_x.slices(like.shape)]
        x = torch.zeros(shape, dtype=like.dtype) if like.dtype == torch.long else torch.randn(shape)

        def step(ours: torch.nn.Module = ours, x: torch.Tensor = x) -> None:
            ours.zero_grad()
            ours(x).square().mean().backward()

        seconds = measured(step, world)
        found = distdl.plans(network, world, [like], most=10_000)
        estimate = next(
            (each.seconds for each in found if list(each.P_x.shape) == list(P_x.shape) and not each.plan), 0
        )
        if world.rank == 0:
            print(f"{name}: measured {seconds:.3f} s, estimated {estimate:.3f} s", found.machine, flush=True)


if __name__ == "__main__":
    main()
