"""Compares models of packages that people use, split by distdl.distribute, with themselves in one process.

python benchmarks/models.py --table models.csv                        # all that has no row in the table yet
python benchmarks/models.py --table models.csv --only resnet --seconds 140
python benchmarks/models.py --table models.csv --packages timm smp --sample 20 --seed 1
python benchmarks/models.py --table models.csv --page docs/models.rst  # the table as a page

In float64, on small inputs, in training and in evaluation: the results, the gradients of all parameters, three steps of
Adam with their losses, and the parameters and buffers after them. Random numbers are those of one process, with the
same seed; where a model asks for float32, it gets float64. A job that does not come back becomes a row of the table.

The modules of benchmarks/zoo say how each package is installed. Packages that are not are left out.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from models_table import Row, append, page, read, shown
from mpi4py import MPI
from torch.utils._pytree import tree_leaves, tree_map_only
from zoo import PACKAGES, Entry, entries

import distdl
from distdl import Partition

PARTITIONS = ((1, 1, 2, 1), (1, 1, 2, 2), (1, 1, 1, 3), (2, 1, 1, 1))
MODES = ("training", "evaluation")
LIMITS = 1e-10, 1e-8, 1e-7  # of errors of results, gradients and steps, relative to the largest element
TIMES = 10.0  # what a model's own parameters change, if they are rounded otherwise; where that is more
_MOST_MEMORY = "60 GB"
LARGE = f"in float64, beside itself on one machine, it takes up to {_MOST_MEMORY} of memory; --large compares it"
START = 4  # times the patience until a job has imported the packages
FLOOR = 1e-6  # of the largest gradient of the model: smaller ones are zero but for rounding


# A job of ranks: the comparison


def relative_error(ours: torch.Tensor, expected: torch.Tensor, floor: float = 0.0) -> float:
    """The largest error of an element, relative to the largest element, or to the floor if that is larger."""
    if ours.shape != expected.shape:
        return math.inf
    if expected.numel() == 0:
        return 0.0
    error = float((ours.detach().double() - expected.detach().double()).abs().max())
    return error / max(float(expected.abs().max()), floor, 1e-300) if error else 0.0


def loss_of(results: object) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The tensors that a model returns, and their sum with weights."""
    leaves = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    generator = torch.Generator().manual_seed(2)
    terms = [(leaf * torch.randn(leaf.shape, dtype=leaf.dtype, generator=generator)).sum() for leaf in leaves]
    return leaves, torch.stack(terms).sum()


def largest_gradient(model: torch.nn.Module) -> float:
    """The largest element of all gradients, on all ranks."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None and each.grad.numel()]
    return MPI.COMM_WORLD.allreduce(max((float(each.abs().max()) for each in gradients), default=0.0), MPI.MAX)


def adam_steps(model: torch.nn.Module, largest: float) -> Iterator[None]:
    """Three steps of Adam, and before the last two a place to compute gradients anew.

    Adam divides by the size of a gradient, so that a gradient that is zero but for rounding, as that of a bias before a
    batch norm, would become a step of any size. With this epsilon, the rounding of a step is that of the gradients.

    Args:
        largest: the largest element of all gradients.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=largest or 1.0)
    for _ in range(2):
        optimizer.step()
        optimizer.zero_grad()
        yield
    optimizer.step()


@dataclass
class Outcome:
    """What a call computes, and three steps of Adam if it is one in training."""

    results: list[torch.Tensor]
    gradients: Mapping[str, torch.Tensor]
    losses: list[float]
    state: Mapping[str, torch.Tensor]

    def errors(self, expected: Outcome) -> tuple[list[float], str]:
        """The relative errors of results, gradients and steps, and where the largest ones are."""
        own = expected.gradients
        floor = FLOOR * max((float(gradient.abs().max()) for gradient in own.values() if gradient.numel()), default=0.0)
        gradients = {name: relative_error(self.gradients[name], gradient, floor) for name, gradient in own.items()}
        after = {name: relative_error(self.state[name], own, FLOOR) for name, own in expected.state.items()}
        losses = [abs(x - y) / max(1.0, abs(y)) for x, y in zip(self.losses, expected.losses, strict=True)]
        both = zip(self.results, expected.results, strict=True)
        result = max((relative_error(*pair) for pair in both), default=0.0)
        worst, late = (max(each, key=each.__getitem__, default="") for each in (gradients, after))
        figures = [result, gradients.get(worst, 0.0), max([*after.values(), *losses])]
        text = (
            f"result {result:.1e}, gradient of {worst} {figures[1]:.1e}, after three steps {figures[2]:.1e}, in {late}"
        )
        return figures, text


def outcome_alone(model: torch.nn.Module, entry: Entry, largest: float) -> Outcome:
    """What a model computes in one process."""
    torch.manual_seed(3)
    inputs = entry.inputs()
    results, loss = loss_of(model(*inputs, **entry.options))
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    losses, state = [loss.item()], dict[str, torch.Tensor]()
    if model.training:
        for _ in adam_steps(model, largest):
            _, loss = loss_of(model(*inputs, **entry.options))
            loss.backward()
            losses.append(loss.item())
        named = model.state_dict().items()
        state = {name: own for name, own in named if isinstance(own, torch.Tensor)}  # models may add other things
    return Outcome(results, gradients, losses, state)


def made(entry: Entry, is_whole: bool = True) -> torch.nn.Module:
    """The model of an entry in float64, the same in each process; without values if it need not be whole."""
    torch.manual_seed(0)
    model = entry.make()
    if not is_whole:
        model.to("meta")
    model.double()
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_complex():
            tensor.data = tensor.data.to(torch.complex128)
    return model


class Pair:
    """A model, and the same over a partition. Constructing and comparing are collective."""

    def __init__(self, entry: Entry, split: Sequence[int], rank: int) -> None:
        self.entry, self.name, self.split, self.rank = entry, entry.name, split, rank
        self.model = made(entry, is_whole=not (entry.is_large and rank))  # one whole model takes memory enough
        self.inputs = entry.inputs()
        self.P_x = Partition().create_cartesian_topology_partition(entry.split(split))
        self.ours = distdl.distribute(self.model, self.P_x, as_sequential=True, values="agree")

    def compared(self, mode: str) -> Row:
        """Run both; rank 0 measures the errors."""
        row = Row(self.name, shown(self.split), mode)
        for model in (self.model, self.ours):
            model.train(mode == "training").zero_grad()
        try:
            blocks = [distdl.scatter(x, self.P_x) for x in self.inputs]
            torch.manual_seed(3)
            start = time.perf_counter()
            results = self.ours(*blocks, **self.entry.options)
            row.seconds = time.perf_counter() - start
            leaves, loss = loss_of(distdl.gather(results, self.ours.output_partition))
            loss.backward()
            gradients = distdl.sequential_gradients(self.ours)
            losses, state = [loss.item()], dict[str, torch.Tensor]()
            largest = largest_gradient(self.ours)
            if mode == "training":
                for _ in adam_steps(self.ours, largest):
                    _, loss = loss_of(
                        distdl.gather(self.ours(*blocks, **self.entry.options), self.ours.output_partition)
                    )
                    loss.backward()
                    losses.append(loss.item())
                state = distdl.sequential_state_dict(self.ours)
            self.ours.zero_grad()  # room for the other model's
        except Exception as error:
            row.status, row.reason = "refused", f"{type(error).__name__}: {error}"
            if self.rank == 0 and self.fails_alone(str(error)):
                row.reason = f"in one process, too: {row.reason}"
            return row
        report = distdl.report(self.ours)
        row.operations, row.gathered = len(report.rows), sum(call.gathered for call in report.rows)
        if self.rank == 0:
            self.measure(row, Outcome(leaves, gradients, losses, state), largest)
        return row

    def measure(self, row: Row, ours: Outcome, largest: float) -> None:
        """Note the errors beside the model in one process."""
        expected = outcome_alone(self.model, self.entry, largest)
        figures, text = ours.errors(expected)
        row.result, row.gradient, row.steps = figures
        if any(error > limit for error, limit in zip(figures, LIMITS, strict=True)):
            changed, of_rounding = outcome_alone(self.rounded(), self.entry, largest).errors(expected)
            row.reason = f"{text}; its own parameters, rounded otherwise: {of_rounding}"
            limits = (max(limit, TIMES * own) for limit, own in zip(LIMITS, changed, strict=True))
            if any(error > limit for error, limit in zip(figures, limits, strict=True)):
                row.status = "differs"
        if ours.state:
            self.model.load_state_dict(ours.state, strict=False)  # so that evaluation does not begin with differences

    def rounded(self) -> torch.nn.Module:
        """The model as before the last comparison, with each parameter changed by up to a rounding."""
        model = made(self.entry).train(self.model.training)
        if not model.training:
            model.load_state_dict(self.model.state_dict(), strict=False)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.rand(parameter.shape, dtype=torch.float64, generator=generator) - 0.5
                parameter.mul_(1 + torch.finfo(torch.float64).eps * 2 * noise)
        return model

    def fails_alone(self, message: str) -> bool:
        """Whether the model raises in one process what is a part of a message."""
        try:
            with torch.no_grad():
                self.model(*self.inputs, **self.entry.options)
        except Exception as error:
            return str(error) in message
        return False


def keep_double() -> None:
    """Let tensors become no float32, in which blocks and whole tensors are rounded differently."""
    convert, wide = torch.Tensor.to, {torch.float32: torch.float64}

    def to(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        own, named = tree_map_only(torch.dtype, lambda kind: wide.get(kind, kind), (args, kwargs))
        return convert(x, *own, **named)

    tensors: Any = torch.Tensor
    tensors.to, tensors.float = to, torch.Tensor.double


def run_ranks(arguments: argparse.Namespace) -> None:
    """Compare the named models in turn, until the time is up."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    keep_double()
    comm, start = MPI.COMM_WORLD, time.monotonic()
    named = {entry.name: entry for entry in entries(arguments.packages)}
    for name in arguments.models:
        if comm.bcast(time.monotonic() - start > arguments.seconds):
            return
        if comm.rank == 0:
            print(f"{name},{MODES[0]}", flush=True)  # tells the command where the job is
        pair = None  # frees the last pair before the next
        pair = Pair(named[name], arguments.split, comm.rank)
        for mode in MODES:
            if comm.rank == 0:
                print(f"{name},{mode}", flush=True)
            row = pair.compared(mode)
            if comm.rank == 0:
                append(arguments.table, row)


# The command: jobs, and what becomes of them


def run_job(arguments: argparse.Namespace, split: Sequence[int], models: Sequence[str], seconds: float) -> None:
    """Compare models in one job of ranks, until the time is up or the job ends."""
    command = ["mpiexec", "-n", math.prod(split), sys.executable, "-m", "mpi4py", __file__, "--table", arguments.table]
    command += ["--seconds", seconds, "--split", *split, "--models", *models]
    command += ["--packages", *arguments.packages]
    job = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    at: list[str] = []

    def read_places() -> None:
        """Where the job is, without what mpiexec says."""
        places = map(str.strip, job.stdout or ())
        at.extend(place for place in places if place.rpartition(",")[2] in MODES)

    reader = threading.Thread(target=read_places, daemon=True)
    reader.start()
    last, seen, hangs = time.monotonic(), 0, False
    while job.poll() is None and not hangs:
        time.sleep(0.2)
        if len(at) > seen:
            last, seen = time.monotonic(), len(at)
        hangs = time.monotonic() - last > arguments.patience * (1 if seen else START)
    if hangs:
        job.terminate()
        job.wait()
    reader.join(5)
    if job.returncode and at:
        model = at[-1].split(",")[0]
        done = {row.key for row in read(arguments.table)}
        reason = f"nothing for {arguments.patience:.0f} s" if hangs else f"exit status {job.returncode}"
        for mode in MODES:
            row = Row(model, shown(split), mode, "hangs" if hangs else "ends", reason=reason)
            if row.key not in done:
                append(arguments.table, row)


def run_all(arguments: argparse.Namespace) -> None:
    """Compare all that has no row in the table yet."""
    start = time.monotonic()
    chosen = [entry for entry in entries(arguments.packages) if arguments.only in entry.name]
    if arguments.sample is not None:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
    for i, split in enumerate(PARTITIONS, 1):  # each of them has its part of the time
        while True:
            done = {row.key for row in read(arguments.table)}
            wanted = []
            for entry in chosen:
                rows = [Row(entry.name, shown(split), mode) for mode in MODES]
                if any(row.key not in done for row in rows):
                    wanted.append(entry)
            for entry in [entry for entry in wanted if entry.is_large and not arguments.large]:
                for mode in MODES:
                    append(arguments.table, Row(entry.name, shown(split), mode, "left out", reason=LARGE))
            models = [entry.name for entry in wanted if arguments.large or not entry.is_large]
            left = arguments.seconds * i / len(PARTITIONS) - (time.monotonic() - start)
            if not models or left < 5:
                break
            run_job(arguments, split, models, left)


def main() -> None:
    """Compare, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True, help="of rows that are there; further ones come behind")
    parser.add_argument("--only", default="", help="a part of the names of the models")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--sample", type=int, help="compare a random sample of so many of these models")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--seconds", type=float, default=math.inf, help="until no further model is begun")
    parser.add_argument("--patience", type=float, default=90.0, help="seconds after which a job hangs")
    parser.add_argument("--large", action="store_true", help=f"also models that take up to {_MOST_MEMORY} of memory")
    parser.add_argument("--page", type=Path, help="write the page of the table in place of comparing")
    parser.add_argument("--split", type=int, nargs="+", help="of a job of ranks, which this command starts itself")
    parser.add_argument("--models", nargs="+", help="of a job of ranks")
    arguments = parser.parse_args()
    if arguments.page:
        arguments.page.write_text(page(read(arguments.table)))
    elif arguments.models:
        run_ranks(arguments)
    else:
        run_all(arguments)


if __name__ == "__main__":
    main()
