"""Report on a model over partitions, operation by operation: a table, and a picture of its exchanges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from distdl.models.capture.recording import Value
from distdl.models.model import DistributedModel
from distdl.models.operations.placement import Blocks, Placement
from distdl.models.plan.costs import MIB, received_within, workers_of
from distdl.models.plan.planning import Plan, PlanStep, Transfers
from distdl.models.text_table import text_table


@dataclass(frozen=True)
class Row:
    """An operation of the model.

    Attributes:
        path: the module in which it stands.
        operation: its name.
        shape: of its first result, as a whole.
        splits: the number of blocks along each dimension; None for copies on each worker.
        workers: the number of ranks that compute it.
        sent: bytes that travel to the workers and within layers in a forward pass; halos are estimated by the kernel.
            As many travel back in a backward pass.
        memory: bytes of the largest block of its results.
        gathered: whether one worker computes it for lack of a rule.
    """

    path: str
    operation: str
    shape: tuple[int, ...]
    splits: tuple[int, ...] | None
    workers: int
    sent: int
    memory: int
    gathered: bool


@dataclass(frozen=True)
class Report:
    """The operations of a model in order, for inputs of certain shapes.

    Printed, it is a table. :meth:`picture` draws it.

    Attributes:
        rows: the operations.
        parameters: bytes of the parameters, which travel to each worker in a forward pass.
        workers: the number of workers.
    """

    rows: Sequence[Row]
    parameters: int
    workers: int

    @property
    def sent(self) -> int:
        """Bytes that travel in a forward pass, without parameters."""
        return sum(row.sent for row in self.rows)

    @property
    def memory(self) -> int:
        """Bytes of the largest blocks of all results, which a backward pass may need."""
        return sum(row.memory for row in self.rows)

    def __str__(self) -> str:
        table = [("module", "operation", "shape", "blocks", "MiB sent", "MiB a rank")]
        for row in self.rows:
            blocks = _blocks(row) + (" (gathered)" if row.gathered else "")
            shape = "x".join(map(str, row.shape)) or "scalar"
            table.append((row.path, row.operation, shape, blocks, _mib(row.sent), _mib(row.memory)))
        table.append(("", f"{len(self.rows)} operations", "", "", _mib(self.sent), _mib(self.memory)))
        lines = text_table(table, left=range(4))
        rule = "-" * len(lines[0])
        parameters = f"parameters: {_mib(self.parameters)} MiB, to each of {self.workers} workers"
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], parameters])

    def picture(self, path: str | Path) -> None:
        """Draw the operations as an SVG file: a bar for each, and a mark where data travels."""
        Path(path).write_text(_picture_of(self))


def report(model: DistributedModel) -> Report:
    """Describe each operation of a model over partitions, for a call like the last.

    Raises:
        TypeError: if :func:`distdl.distribute` has not made the model.
        RuntimeError: before the first call.

    Not collective.
    """
    if not isinstance(model, DistributedModel):
        raise TypeError(
            f"report: the model is of type {type(model).__name__}; distdl.distribute makes models to report on"
        )
    if model.program is None:
        raise RuntimeError("report: the model has to be called before; only then are its shapes known")
    plan = model.program.plan
    named = dict(model.layouts)
    sizes = {name: model.module.get_parameter(name).element_size() for name in model.program.parameters}
    parameters = sum(math.prod(named[name].shape) * size for name, size in sizes.items())
    rows = [_row(plan, step, transfers) for step, transfers in zip(plan.steps, plan.transfers(), strict=True)]
    return Report(rows, parameters, plan.base.size)


def _row(plan: Plan, step: PlanStep, transfers: Transfers) -> Row:
    node = step.node
    sent = sum(sum(counts.values()) * value.dtype.itemsize for value, counts in transfers)
    workers = len(workers_of(step, plan))
    sent += received_within(step)[0] * workers
    first = plan.placement(node.outputs[0])
    splits = first.splits if isinstance(first, Blocks) else None
    memory = sum(_largest(plan.placement(value), value) for value in node.outputs)
    return Row(node.path, node.key, node.outputs[0].shape, splits, workers, sent, memory, node in plan.gathered)


def _largest(place: Placement, value: Value) -> int:
    return place.largest() * value.dtype.itemsize if isinstance(place, Blocks) else value.nbytes


def _blocks(row: Row) -> str:
    return "on each" if row.splits is None else "x".join(map(str, row.splits)) or "one"


def _mib(count: int) -> str:
    return f"{count / MIB:.2f}" if count else "-"


# The picture

_LINE, _LEFT, _WIDTH = 16, 430, 260


def _picture_of(shown: Report) -> str:
    most = max([row.memory for row in shown.rows] + [1])
    height = _LINE * (len(shown.rows) + 3)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 220}" height="{height}" '
        'font-family="monospace" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(8, 1, "module"),
        _text(_LEFT - 150, 1, "operation"),
        _text(_LEFT, 1, "memory a rank"),
        _text(_LEFT + _WIDTH + 10, 1, "blocks; MiB sent"),
    ]
    for i, row in enumerate(shown.rows, start=2):
        width = max(1, round(_WIDTH * row.memory / most))
        color = "#999999" if row.splits is None else "#d62728" if row.gathered else "#1f77b4"
        lines.append(f'<rect x="{_LEFT}" y="{i * _LINE - 10}" width="{width}" height="11" fill="{color}"/>')
        lines.append(_text(8, i, row.path[-36:]))
        lines.append(_text(_LEFT - 150, i, row.operation[:20]))
        blocks, color_of_text = _blocks(row), "#d95f02" if row.sent else "black"
        sent = f"; {_mib(row.sent)} sent" if row.sent else ""
        lines.append(_text(_LEFT + _WIDTH + 10, i, blocks + sent, color_of_text))
        if row.sent:
            lines.append(
                f'<line x1="0" x2="{_LEFT + _WIDTH}" y1="{i * _LINE - 12}" y2="{i * _LINE - 12}" stroke="#d95f02"/>'
            )
    total = f"{len(shown.rows)} operations, {_mib(shown.sent)} MiB sent, {_mib(shown.parameters)} MiB of parameters"
    lines.append(_text(8, len(shown.rows) + 2.3, total))
    return "\n".join([*lines, "</svg>"])


def _text(x: float, line: float, text: str, color: str = "black") -> str:
    return f'<text x="{x}" y="{line * _LINE}" fill="{color}">{escape(text)}</text>'
