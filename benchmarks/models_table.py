"""The table of benchmarks/models.py, and the page of the documentation that shows it."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path


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
        steps: the largest error of the losses of three steps of Adam, and of parameters and buffers after them.
        reason: why, if it is not equal, or only up to what roundings change.
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
    steps: float = 0.0
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


def shown(split: Sequence[int]) -> str:
    """A partition, in a table."""
    return "x".join(map(str, split))


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

Models of packages that people use, split by :func:`distdl.distribute` as they are, beside themselves in one process: in
float64, on small inputs, with the same random numbers, in training and in evaluation, on the partitions [1, 1, 2, 1],
[1, 1, 2, 2], [1, 1, 1, 3] and [2, 1, 1, 1]. A model is equal if its results are equal up to 1e-10, the gradients of
all parameters up to 1e-8, and parameters and buffers after three steps of Adam up to 1e-7, relative to the largest
element; or up to ten times what they change in one process if each parameter is changed by a rounding, where that is
more. The number of its operations stands behind its name; all of them are split.

They are distributed with ``as_sequential=True`` and ``values="agree"``, so that models may look at values. A model that
raises without other arguments, such as targets, is refused in one process, too.

These are the models of a random sample of all that ``benchmarks/zoo`` knows that were compared on all partitions:
``python benchmarks/models.py --table models.csv --sample 100 --seed 40``. The page is made by
``python benchmarks/models.py --table models.csv --page docs/models.rst``. Without ``--sample`` all models are compared.
"""
