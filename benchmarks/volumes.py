"""Trains a network on a volume that is too large for one process: memory at the peak and time of a step.

python benchmarks/volumes.py [--model fno]

trains a 3-d U-Net, or a Fourier neural operator on an image, in jobs of 1, 2 and 4 ranks: each rank with its block of
the volume, or by torch.nn on a volume of the size of this block. At the end, each process may take only so much memory
for a step: one rank fails, four go on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import torch
from mpi4py import MPI
from peak import growth
from report import Row, machine, save

import distdl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "fno"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "networks"))
import model as fno
from unet import SequentialUNet3d, UNet3d

MIB = 1 << 20
HEADER = f"{'ranks':>5}{'peak, MiB':>11}{'torch.nn':>10}{'ratio':>7}{'step, s':>9}{'torch.nn':>10}{'speed-up':>10}"


Loss: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def step_of(network: torch.nn.Module, loss_of: Loss, volume: torch.Tensor) -> Callable[[], float]:
    """A training step on this rank's block of a volume."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(network(volume))
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


@dataclass(frozen=True)
class Model:
    """A network over blocks, the same by torch.nn, and what they are trained on.

    Attributes:
        whole: the shape of the volume, of which the third dimension is in blocks.
        distributed, sequential: what makes the networks.
        criteria: the losses of both.
        target: made of this block's input.
    """

    whole: tuple[int, ...]
    distributed: Callable[[distdl.Partition], torch.nn.Module]
    sequential: Callable[[], torch.nn.Module]
    criteria: tuple[Callable[[distdl.Partition], torch.nn.Module], torch.nn.Module]
    target: Callable[[torch.Tensor], torch.Tensor]

    def step(self, name: str) -> Callable[[], float]:
        """The step of the network of this name, on this rank's block."""
        P_x = distdl.Partition().create_cartesian_topology_partition(
            [MPI.COMM_WORLD.size if d == 2 else 1 for d in range(len(self.whole))]
        )
        shape = [interval.stop - interval.start for interval in P_x.slices(self.whole)]
        volume = torch.randn(shape, generator=torch.Generator().manual_seed(P_x.rank))
        target = self.target(volume)
        if name == "torch.nn":
            return step_of(self.sequential().float(), lambda y: self.criteria[1](y, target), volume)
        criterion = self.criteria[0](P_x)
        return step_of(self.distributed(P_x).float(), lambda y: criterion(y, target), volume)


def unet(side: int, channels: int) -> Model:
    """On a cube, whose voxels are of three classes."""
    return Model(
        (1, 1, side, side, side),
        lambda P_x: UNet3d(P_x, channels),
        lambda: SequentialUNet3d(channels),
        (distdl.nn.DistributedCrossEntropyLoss, torch.nn.CrossEntropyLoss()),
        lambda volume: volume.mul(10).long().remainder(3).squeeze(1),
    )


def operator(side: int, channels: int) -> Model:
    """On two fields over a square."""
    return Model(
        (1, 2, side, side),
        lambda P_x: fno.distributed(P_x, channels),
        lambda: fno.in_one_process(channels),
        (distdl.nn.DistributedMSELoss, torch.nn.MSELoss()),
        lambda fields: fields[:, :1].sin(),
    )


MODELS = {"unet": unet, "fno": operator}


def measure(name: str, model: Model, steps: int) -> list[float]:
    """The growth of memory in two steps, in bytes, and the seconds of a step; of the rank that needs most.

    Collective.
    """
    comm, step = MPI.COMM_WORLD, model.step(name)
    peak = growth(lambda: (step(), step()))[0]
    times = []
    for _ in range(steps):
        comm.Barrier()
        start = perf_counter()
        step()
        times.append(comm.allreduce(perf_counter() - start, MPI.MAX))
    return [comm.allreduce(peak, MPI.MAX), median(times)]


def within(limit: int, model: Model) -> str:
    """What becomes of two steps in which each process takes at most ``limit`` bytes more than it has. Collective."""
    step = model.step("distdl")
    status = Path("/proc/self/status").read_text()
    has = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmData")).split()[1])
    resource.setrlimit(resource.RLIMIT_DATA, (has + limit, has + limit))
    try:
        losses = [step(), step()]
    except RuntimeError as error:  # torch's allocator
        return f"fails: {str(error).splitlines()[0]}"
    return f"trains: losses {losses[0]:.4f}, {losses[1]:.4f}"


def job(ranks: int, *options: object) -> Any:
    """The result of this program on so many ranks."""
    command = ["mpiexec", "-n", str(ranks), sys.executable, "-m", "mpi4py", __file__, "--ranks", *map(str, options)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # the ranks are the parallelism
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def drive(chosen: argparse.Namespace) -> None:
    """Print the table, and who trains within the limit."""
    size = ("--model", chosen.model, "--side", chosen.side, "--channels", chosen.channels)
    print(f"{chosen.model} of {chosen.channels} channels on {list(MODELS[chosen.model](*size[3::2]).whole)}")
    print(HEADER, "-" * len(HEADER), sep="\n")
    rows: list[Row] = []
    for ranks in chosen.jobs:
        both = [job(ranks, *size, "--steps", chosen.steps, "--network", name) for name in ("distdl", "torch.nn")]
        peaks, seconds = zip(*both, strict=True)
        rows.append({"ranks": ranks, "peaks": peaks, "seconds": seconds, "peak, ratio": peaks[0] / peaks[1]})
        rows[-1]["speed-up"] = rows[0]["seconds"][1] / seconds[0]
        print(
            f"{ranks:5}{peaks[0] / MIB:11.0f}{peaks[1] / MIB:10.0f}{peaks[0] / peaks[1]:7.2f}"
            f"{seconds[0]:9.2f}{seconds[1]:10.2f}{rows[-1]['speed-up']:10.2f}", flush=True,
        )  # fmt: skip
    limit = chosen.limit or int(0.6 * rows[0]["peaks"][1] / MIB)
    ends = {ranks: job(ranks, *size, "--limit", limit) for ranks in (1, 4)}
    for ranks, end in ends.items():
        print(f"{ranks} rank{'s' * (ranks > 1)}, {limit} MiB for each: {end}", flush=True)
    if chosen.json:
        save({"machine": machine(), "volumes": rows, "limit": limit, "within": ends}, chosen.json)


def main() -> None:
    """Start the jobs, or be one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="unet", help="(default: %(default)s)")
    parser.add_argument("--side", type=int, default=64, help="of the volume (default: %(default)s)")
    parser.add_argument("--channels", type=int, default=16, help="of the first stage (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="that are timed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4], help="numbers of ranks")
    parser.add_argument("--limit", type=int, default=0, help="MiB of a step (default: 0.6 of torch.nn's peak)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--network", choices=("distdl", "torch.nn"), default="distdl", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if not chosen.ranks:
        drive(chosen)
        return
    torch.manual_seed(0)
    model = MODELS[chosen.model](chosen.side, chosen.channels)
    result: object = within(chosen.limit * MIB, model) if chosen.limit else measure(chosen.network, model, chosen.steps)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
