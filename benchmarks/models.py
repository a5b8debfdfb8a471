"""Compares models of torchvision and of MONAI, split by distdl.distribute, with themselves in one process.

python benchmarks/models.py --table models.csv                        # all that has no row in the table yet
python benchmarks/models.py --table models.csv --only resnet --seconds 140
python benchmarks/models.py --table models.csv --page docs/models.rst  # the table as a page

In float64, on small images, in training and in evaluation: the results, and the gradients of all parameters. Random
numbers are those of one process, with the same seed. A job that does not come back becomes a row of the table, too.

torchvision and MONAI come by ``pip install --no-deps torchvision==0.28.0 monai`` and ``pip install pillow``.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from mpi4py import MPI
from torch.utils._pytree import tree_leaves
from zoo import Entry, entries

import distdl
from distdl import Partition

PARTITIONS = ((1, 1, 2, 1), (1, 1, 2, 2), (1, 1, 1, 3), (2, 1, 1, 1))
MODES = ("training", "evaluation")
OF_RESULTS, OF_GRADIENTS = 1e-10, 1e-8  # relative to the largest element
_MOST_MEMORY = "60 GB"
LARGE = f"in float64, beside itself on one machine, it takes up to {_MOST_MEMORY} of memory; --large compares it"
FLOOR = 1e-6  # of the largest gradient of the model: smaller ones are zero but for rounding


@dataclass
class Row:
    """What was found for a model on a partition in a mode.

    Attributes:
        status: "equal", "differs", "refused" with an error on all ranks, "hangs", "ends" without an error for all, or
            "left out".
        operations: the number of them.
        gathered: how many of these are computed on one worker for lack of a rule.
        seconds: of the first call.
        result, gradient: the largest errors, relative.
        reason: why, if it is not equal.
    """

    model: str
    partition: str
    mode: str
    status: str = "equal"
    operations: int = 0
    gathered: int = 0
    seconds: float = 0.0
    result: float = 0.0
    gradient: float = 0.0
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What the row is of."""
        return self.model, self.partition, self.mode


def read(table: Path) -> list[Row]:
    """The rows of a table."""
    if not table.exists():
        return []
    kinds = {column.name: {"int": int, "float": float}.get(str(column.type), str) for column in fields(Row)}
    with table.open(newline="") as file:
        return [Row(**{k: kinds[k](v) for k, v in line.items()}) for line in csv.DictReader(file)]


def append(table: Path, row: Row) -> None:
    """Write a row behind the others, at once."""
    is_new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, [column.name for column in fields(Row)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


# A job of ranks: the comparison


def relative_error(ours: torch.Tensor, expected: torch.Tensor, floor: float = 0.0) -> float:
    """The largest error of an element, relative to the largest element, or to the floor if that is larger."""
    if ours.shape != expected.shape:
        return math.inf
    if expected.numel() == 0:
        return 0.0
    error = float((ours.double() - expected.double()).abs().max())
    return error / max(float(expected.abs().max()), floor, 1e-300) if error else 0.0


def loss_of(results: object) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The tensors that a model returns, and their sum with weights."""
    leaves = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    generator = torch.Generator().manual_seed(2)
    terms = [(leaf * torch.randn(leaf.shape, dtype=leaf.dtype, generator=generator)).sum() for leaf in leaves]
    return leaves, torch.stack(terms).sum()


class Pair:
    """A model, and the same over a partition. Constructing and comparing are collective."""

    def __init__(self, entry: Entry, split: Sequence[int], rank: int) -> None:
        torch.manual_seed(0)
        self.name, self.split, self.rank = entry.name, split, rank
        self.model = entry.make()
        if entry.is_large and rank:
            self.model.to("meta")  # one whole model takes memory enough
        self.model.double()
        generator = torch.Generator().manual_seed(1)
        self.inputs = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in entry.shapes]
        self.P_x = Partition().create_cartesian_topology_partition([*split, *[1] * (len(entry.shapes[0]) - len(split))])
        self.ours = distdl.distribute(self.model, self.P_x, as_sequential=True)

    def compared(self, mode: str) -> Row:
        """Run both; rank 0 measures the errors."""
        row = Row(self.name, shown(self.split), mode)
        for model in (self.model, self.ours):
            model.train(mode == "training").zero_grad()
        torch.manual_seed(3)
        try:
            blocks = [distdl.scatter(x, self.P_x) for x in self.inputs]
            start = time.perf_counter()
            results = self.ours(*blocks)
            row.seconds = time.perf_counter() - start
            leaves, loss = loss_of(distdl.gather(results, self.ours.output_partition))
            loss.backward()
            gradients = distdl.sequential_gradients(self.ours)
            self.ours.zero_grad()  # room for the other model's
        except Exception as error:
            row.status, row.reason = "refused", f"{type(error).__name__}: {error}"
            if self.rank == 0 and self.fails_alone(str(error)):
                row.reason = f"in one process, too: {row.reason}"
            return row
        report = distdl.report(self.ours)
        row.operations, row.gathered = len(report.rows), sum(call.gathered for call in report.rows)
        if self.rank:
            return row
        torch.manual_seed(3)
        expected, loss = loss_of(self.model(*self.inputs))
        loss.backward()
        row.result = max(relative_error(*both) for both in zip(leaves, expected, strict=True))
        own = {name: parameter.grad for name, parameter in self.model.named_parameters() if parameter.grad is not None}
        floor = FLOOR * max((float(gradient.abs().max()) for gradient in own.values()), default=0.0)
        errors = {name: relative_error(gradients[name], gradient, floor) for name, gradient in own.items()}
        worst = max(errors, key=lambda name: errors[name], default="")
        row.gradient = errors.get(worst, 0.0)
        if not (row.result <= OF_RESULTS and row.gradient <= OF_GRADIENTS):
            row.status, row.reason = "differs", f"result {row.result:.1e}, gradient of {worst} {row.gradient:.1e}"
        return row

    def fails_alone(self, message: str) -> bool:
        """Whether the model raises in one process what is a part of a message."""
        try:
            with torch.no_grad():
                self.model(*self.inputs)
        except Exception as error:
            return str(error) in message
        return False


def run_ranks(arguments: argparse.Namespace) -> None:
    """Compare the named models in turn, until the time is up."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    comm, start = MPI.COMM_WORLD, time.monotonic()
    named = {entry.name: entry for entry in entries()}
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


def shown(split: Sequence[int]) -> str:
    """A partition, in a table."""
    return "x".join(map(str, split))


def run_job(arguments: argparse.Namespace, split: Sequence[int], models: Sequence[str], seconds: float) -> None:
    """Compare models in one job of ranks, until the time is up or the job ends."""
    command = ["mpiexec", "-n", math.prod(split), sys.executable, "-m", "mpi4py", __file__, "--table", arguments.table]
    command += ["--seconds", seconds, "--split", *split, "--models", *models]
    job = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    at: list[str] = []
    reader = threading.Thread(target=lambda: at.extend(map(str.strip, job.stdout or ())), daemon=True)
    reader.start()
    last, seen, hangs = time.monotonic(), 0, False
    while job.poll() is None and not hangs:
        time.sleep(0.2)
        if len(at) > seen:
            last, seen = time.monotonic(), len(at)
        hangs = time.monotonic() - last > arguments.patience
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
    for i, split in enumerate(PARTITIONS, 1):  # each of them has its part of the time
        while True:
            done = {row.key for row in read(arguments.table)}
            wanted = []
            for entry in entries():
                rows = [Row(entry.name, shown(split), mode) for mode in MODES]
                if arguments.only in entry.name and any(row.key not in done for row in rows):
                    wanted.append(entry)
            for entry in [entry for entry in wanted if entry.is_large and not arguments.large]:
                for mode in MODES:
                    append(arguments.table, Row(entry.name, shown(split), mode, "left out", reason=LARGE))
            models = [entry.name for entry in wanted if arguments.large or not entry.is_large]
            left = arguments.seconds * i / len(PARTITIONS) - (time.monotonic() - start)
            if not models or left < 5:
                break
            run_job(arguments, split, models, left)


# The page


def page(rows: Sequence[Row]) -> str:
    """A page of the documentation, whatever the order in which models were compared."""
    rows = sorted(rows, key=lambda row: (row.model.startswith("MONAI"), row.model.lower()))
    models = list(dict.fromkeys(row.model for row in rows))
    results = {model: [row for row in rows if row.model == model] for model in models}
    equal = [model for model in models if all(row.status == "equal" for row in results[model])]
    names = ", ".join(f"{model} ({max(row.operations for row in results[model])})" for model in equal)
    reasons: dict[str, list[str]] = {}
    for model in models:
        for row in results[model]:
            if row.status != "equal":
                reasons.setdefault(f"{row.status}: {brief(row)}", []).append(model)
    lines = [_HEAD, f"{len(equal)} of {len(models)} models are equal on all of these partitions:", ""]
    lines += textwrap.wrap(f"{names}.", 118, break_long_words=False, break_on_hyphens=False)
    if reasons:
        lines += ["", "The others, and why:", ""]
    for reason, of_models in reasons.items():
        text = f"* {', '.join(dict.fromkeys(of_models))}: {reason}"
        lines += textwrap.wrap(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).rstrip() + "\n"


def brief(row: Row) -> str:
    """The reason on one line."""
    lines = [line.strip() for line in row.reason.splitlines()]
    calls = [line for line in lines[1:] if " in " in line]
    text = lines[0] if not calls else f"{lines[0]} {calls[0]}"
    return text.replace("*", r"\*").replace("`", "'").replace("|", r"\|").replace("_", r"\_")[:300]


_HEAD = """Models
======

Models of torchvision and MONAI, split by :func:`distdl.distribute` as they are, beside themselves in one process: in
float64, on small images, with the same random numbers, in training and in evaluation, on the partitions [1, 1, 2, 1],
[1, 1, 2, 2], [1, 1, 1, 3] and [2, 1, 1, 1]. A model is equal if its results are equal up to 1e-10, and the gradients of
all parameters up to 1e-8, relative to the largest element. The number of its operations stands behind its name; all of
them are split.

What a model computes may not depend on values: the sizes of all tensors, and the branches that the model takes, are
known before it runs. Detection models choose boxes by their scores, so they are refused, with the line of the model.

``python benchmarks/models.py --table models.csv`` compares all models and
``python benchmarks/models.py --table models.csv --page docs/models.rst`` makes this page.
"""


def main() -> None:
    """Compare, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True, help="of rows that are there; further ones come behind")
    parser.add_argument("--only", default="", help="a part of the names of the models")
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
