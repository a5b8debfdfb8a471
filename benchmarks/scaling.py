"""Estimates the step of three networks on 1 to 100,000 ranks of a cluster, by the model of distdl.plans.

python benchmarks/scaling.py

Weak scaling: each rank has a block of the same size. Strong scaling: what 8 ranks have there, on more ranks. It runs in
one process, without any of the ranks, and takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from steps import SequentialUNet3d, Text, fno

import distdl
from distdl.models.plan.costs import cost
from distdl.models.plan.training import Training
from distdl.models.planned_model import PlannedModel, inputs_of
from distdl.partitions.grid import Grid

# HPE Slingshot 11, as on the page of scale: 8 ranks and one adapter a node. A rank computes as one of an MI250X's two
# chips: 23.9 TFLOP/s in float32, of which convolutions reach about half, and 1.6 TB/s.
CLUSTER = distdl.Machine(
    ranks_per_node=8, latency=1e-6, bandwidth=2.4e10, node_latency=1.6e-6, node_bandwidth=2.4e10, flops=1.2e13,
    memory_bandwidth=1.3e12,
)  # fmt: skip
NO_LATENCY = replace(CLUSTER, latency=1e-15, node_latency=1e-15)
NO_MESSAGES = replace(NO_LATENCY, bandwidth=1e18, node_bandwidth=1e18)
RANKS = (1, 8, 1_000, 100_000)
GRIDS = {1: (1, 1, 1), 8: (2, 2, 2), 1_000: (10, 10, 10), 100_000: (50, 50, 40)}
SQUARES = {1: (1, 1), 8: (2, 4), 1_000: (25, 40), 100_000: (250, 400)}


@dataclass(frozen=True)
class Network:
    """A network, the shape of a rank's block, and how the input is split among a number of ranks.

    Attributes:
        strong: the splits of what 8 ranks have in weak scaling.
    """

    make: Callable[[], torch.nn.Module]
    block: tuple[int, ...]
    weak: dict[int, tuple[int, ...]]
    strong: dict[int, tuple[int, ...]]
    dtype: torch.dtype = torch.float32


VOLUMES = {n: (1, 1, *grid) for n, grid in GRIDS.items()}
IMAGES = {n: (1, 1, *grid) for n, grid in SQUARES.items()}
NETWORKS = {
    "3-d U-Net, 128 cubed a rank": Network(lambda: SequentialUNet3d(32), (1, 1, 128, 128, 128), VOLUMES, VOLUMES),
    "FNO, 1,024 squared a rank": Network(
        lambda: fno.in_one_process(32, 16, 4).float(), (1, 2, 1024, 1024), IMAGES, IMAGES
    ),
    "GPT of 12 layers of 1,024, 2,048 tokens a rank": Network(
        lambda: Text(50_000, 1024, 16, 12, 8192), (1, 2048),
        {1: (1, 1), 8: (4, 2), 1_000: (500, 2), 100_000: (50_000, 2)}, {8: (4, 2), 1_000: (4, 250)},
        torch.long,
    ),
}  # fmt: skip


def parts(planned: PlannedModel, splits: tuple[int, ...], training: Training) -> list[float]:
    """The milliseconds of a step: computing, bytes that travel, and messages that wait for each other."""
    ranks = 1
    for along in splits:
        ranks *= along
    plan, works = planned.for_request(Grid.imagined(ranks).reshaped(splits), {})
    times = [1e3 * cost(plan, machine, works, training).seconds for machine in (NO_MESSAGES, NO_LATENCY, CLUSTER)]
    return [times[0], times[1] - times[0], times[2] - times[1]]


def rows() -> Iterator[tuple[str, int, list[float]]]:
    """Each network and kind of scaling, the number of ranks, and the parts of a step."""
    for name, network in NETWORKS.items():
        with torch.device("meta"):
            model = network.make()
        training = Training.of("scaling", "replicated", "adam")
        of_eight = [n * p for n, p in zip(network.block, network.weak[8], strict=True)]
        for ranks, splits in network.weak.items():
            weak = [n * p for n, p in zip(network.block, splits, strict=True)]
            tried = {"weak": (weak, splits), "strong": (of_eight, network.strong.get(ranks))}
            for kind, (shape, way) in tried.items():
                if way is None or (kind == "strong" and ranks == 1):
                    continue
                like = torch.empty(shape, dtype=network.dtype, device="meta")
                planned = PlannedModel(model, inputs_of("scaling", model, [like]))
                yield f"{name}, {kind}", ranks, parts(planned, way, training)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'':62} {'ranks':>8} {'step':>9} {'computing':>9} {'bytes':>9} {'messages':>9}   ms")
    for name, ranks, times in rows():
        print(f"{name:62} {ranks:8,} {sum(times):9.2f}", *(f"{time:9.2f}" for time in times), flush=True)


if __name__ == "__main__":
    main()
