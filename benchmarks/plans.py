"""Compares the time that distdl.plans estimates for ways to split three models with the time that they take.

mpiexec -n 2 python -m mpi4py benchmarks/plans.py

Of the proposals for each model ten are timed, from the fastest to the slowest in equal steps; the agreement of both
orders is Spearman's rank correlation. Needs torchvision and MONAI, as benchmarks/models.py says.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from scipy.stats import spearmanr
from torch.utils._pytree import tree_leaves
from tqdm import trange
from zoo.monai import nets
from zoo.torchvision import vision

import distdl

COUNT = 10  # of the proposals that are timed

MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "ResNet-18": (vision.resnet18, (4, 3, 128, 128)),
    "3-d UNet": (lambda: nets.BasicUNet(3, 1, 2, (8, 8, 16, 32, 64, 8)), (2, 1, 32, 32, 32)),
    "transformer": (
        lambda: torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True), 4, enable_nested_tensor=False
        ),
        (4, 256, 256),
    ),
}


def step_of(model: torch.nn.Module, proposal: distdl.models.Proposal, shape: tuple[int, ...]) -> Callable[[], None]:
    """A step of training of the model as it is proposed."""
    ours = distdl.distribute(model, proposal.P_x, plan=proposal.plan)
    inside = proposal.P_x.active
    x = torch.randn([span.stop - span.start for span in proposal.P_x.slices(shape)]) if inside else torch.zeros(0)

    def step() -> None:
        leaves = [leaf for leaf in tree_leaves(ours(x)) if isinstance(leaf, torch.Tensor)]
        torch.stack([leaf.sum() for leaf in leaves]).sum().backward()

    return step


def measured(steps: Sequence[Callable[[], None]], repeats: int, description: str) -> list[float]:
    """The median times of the slowest rank, in rounds of all steps: what slows the machine for a while slows all."""
    world = distdl.Partition()
    taken: list[list[float]] = [[] for _ in steps]
    for _ in trange(repeats + 1, desc=description, disable=world.rank != 0, leave=False):
        for step, own in zip(steps, taken, strict=True):
            world.allreduce_data([0.0])
            start = time.perf_counter()
            step()
            own.append(max(world.allgather_data([time.perf_counter() - start]))[0])
    return [float(statistics.median(own[1:])) for own in taken]


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="a part of the model's name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    world = distdl.Partition()
    for name, (make, shape) in MODELS.items():
        if arguments.only not in name:
            continue
        torch.manual_seed(0)
        model = make()
        torch.manual_seed(1 + world.rank)  # each rank has a block of its own
        listed = distdl.plans(model, world, shape, most=1000)
        picked = [listed[i * (len(listed) - 1) // (COUNT - 1)] for i in range(COUNT)] if len(listed) > COUNT else listed
        taken = measured([step_of(model, proposal, shape) for proposal in picked], arguments.repeats, name)
        rows = [(proposal.seconds, seconds, str(proposal)) for proposal, seconds in zip(picked, taken, strict=True)]
        if world.rank == 0:
            correlation = spearmanr([row[0] for row in rows], [row[1] for row in rows]).statistic
            print(f"{name}, {list(shape)}, {world.size} ranks: rank correlation {correlation:.2f}")
            for estimate, seconds, text in rows:
                print(f"  estimated {estimate * 1e3:8.1f} ms, measured {seconds * 1e3:8.1f} ms  {text}", flush=True)


if __name__ == "__main__":
    main()
