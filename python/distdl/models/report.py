"""Report on a model over partitions, operation by operation: a table, and a picture of its exchanges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from distdl.models.capture.node_work import works_of
from distdl.models.capture.recording import Value
from distdl.models.function_module import whole_module
from distdl.models.model import DistributedModel
from distdl.models.operations.placement import Blocks, Placement
from distdl.models.plan.exchanges import received_within, workers_of
from distdl.models.plan.halo_choice import HALOS, chain_all
from distdl.models.plan.memory import fullest_rank
from distdl.models.plan.planning import Plan, PlanStep, Transfer
from distdl.models.plan.requested import is_grid, requested_splits
from distdl.models.plan.step_memory import StepMemory
from distdl.models.plan.training import Training
from distdl.models.planned_model import PlannedModel, inputs_of, refuse_unplanned
from distdl.models.svg import document, text
from distdl.models.text_table import MIB, numbers, text_table
from distdl.nn.base.options import check_choice
from distdl.parameters.layout import OF_MODELS, current_kind
from distdl.partitions.construction import PartitionLike, grid_of, is_partition
from distdl.partitions.grid import Grid


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
        kept: bytes that the fullest rank keeps for the backward pass; a tensor counts where it is kept first.
        gathered: whether one worker computes it for lack of a rule.
        weights: bytes of the parameters that it uses, as a whole.
        share: as many as the fullest worker has, where a plan splits features, heads, vocabularies or experts.
        overlap: how many times the elements of its blocks a worker computes, so that fewer halos travel.
    """

    path: str
    operation: str
    shape: tuple[int, ...]
    splits: tuple[int, ...] | None
    workers: int
    sent: int
    memory: int
    gathered: bool
    kept: int = 0
    weights: int = 0
    share: int = 0
    overlap: float = 1.0


@dataclass(frozen=True)
class Report:
    """The operations of a model in order, for inputs of certain shapes.

    Printed, it is a table. :meth:`picture` draws it.

    Attributes:
        rows: the operations.
        parameters: bytes of the parameters that travel to each worker in a forward pass.
        workers: the number of workers.
        step: the memory of the fullest rank at the fullest moment of a step of training.
        staying: bytes of the parameters that live in blocks where they are used, as a whole.
    """

    rows: Sequence[Row]
    parameters: int
    workers: int
    step: StepMemory = field(default_factory=StepMemory)
    staying: int = 0

    @property
    def sent(self) -> int:
        """Bytes that travel in a forward pass, without parameters."""
        return sum(row.sent for row in self.rows)

    @property
    def memory(self) -> int:
        """Bytes of the largest blocks of all results."""
        return sum(row.memory for row in self.rows)

    @property
    def kept(self) -> int:
        """Bytes that the fullest rank keeps for the backward pass."""
        return sum(row.kept for row in self.rows)

    def __str__(self) -> str:
        table: list[tuple[str, ...]] = [
            ("module", "operation", "shape", "blocks", "MiB weights", "MiB sent", "MiB a rank", "MiB kept")
        ]
        for row in self.rows:
            blocks = _blocks(row) + (" (gathered)" if row.gathered else "")
            shape = numbers(row.shape) or "scalar"
            sizes = map(_mib, (row.sent, row.memory, row.kept))
            table.append((row.path, row.operation, shape, blocks, _weights(row), *sizes))
        total = map(_mib, (self.sent, self.memory, self.kept))
        table.append(("", f"{len(self.rows)} operations", "", "", "", *total))
        lines = text_table(table, left=range(4))
        rule = "-" * len(lines[0])
        parameters = f"parameters: {_mib(self.parameters)} MiB, to each of {self.workers} workers"
        parameters += f"; {_mib(self.staying)} MiB stay in blocks" if self.staying else ""
        step = f"a step of training: {_mib(self.step.total)} MiB on the fullest rank: {self.step}"
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], parameters, step])

    def picture(self, path: str | Path) -> None:
        """Draw the operations as an SVG file: a bar for each, and a mark where data travels."""
        Path(path).write_text(_picture_of_report(self))


def report(
    model: torch.nn.Module | Callable[..., object],
    P_x: PartitionLike | Sequence[int] | None = None,
    shape: Sequence[int] | Sequence[object] | None = None,
    plan: Mapping[str, object] | None = None,
    fallback: str = "error",
    optimizer: str | float = "adam",
    halos: str = "auto",
) -> Report:
    """Describe each operation of a model over partitions, for a call like the last; or of a model of torch, as planned.

    With P_x and shape the model is neither called nor distributed, and the ranks need not exist:
    ``distdl.report(model, P_x=[1, 1, 8, 8], shape=(1, 3, 4096, 4096))``.

    Args:
        model: a model that :func:`distdl.distribute` has made, after its first call; or, with P_x and shape, any
            ``torch.nn.Module`` or function.
        P_x: how the inputs would be split: the numbers of workers along each dimension, or a partition.
        shape: the shape of the whole input, or a list of shapes or tensors, as for :func:`distdl.plans`.
        plan, fallback: as in :func:`distdl.distribute`.
        optimizer: as in :func:`distdl.plans`; layouts and autocast count likewise.
        halos: as in :func:`distdl.distribute`, on one host: with "auto" each operation exchanges its halos.

    Raises:
        TypeError, ValueError: if an argument is not as described.
        RuntimeError: before the first call.

    Not collective.
    """
    if P_x is None and shape is None:
        return _of_last_call(model, optimizer)
    model = whole_module(model)
    refuse_unplanned("report", model)
    if P_x is None or shape is None:
        raise ValueError("report: of a model that is not distributed it takes P_x and shape")
    grid = _imagined(P_x)
    inputs = inputs_of("report: shape", model, shape)
    for whole, _ in inputs:
        if len(whole) > grid.dim:
            raise ValueError(
                f"report: P_x has shape {list(grid.shape)}, but an input has shape {list(whole)}; the partition must "
                "have as many dimensions as the input"
            )
    check_choice("report", "halos", halos, HALOS)
    planned = PlannedModel(model, inputs, fallback)
    made, works = planned.for_request(grid, requested_splits(plan, model, grid))
    if halos == "chain":
        chain_all(made)
    timeline = fullest_rank(made, works, Training.of("report", current_kind(OF_MODELS), optimizer))
    return _report(made, timeline.kept, timeline.fullest)


def _imagined(P_x: PartitionLike | Sequence[int]) -> Grid:
    """The grid of numbers of workers, or of a partition."""
    if is_partition(P_x):
        return grid_of(P_x)
    if not isinstance(P_x, list | tuple) or not is_grid(P_x) or min(P_x) < 1:
        raise ValueError(f"report: P_x={P_x!r}; it has to be a partition, or numbers of workers")
    return Grid.imagined(math.prod(P_x)).reshaped(P_x)


def _of_last_call(model: object, optimizer: str | float) -> Report:
    if not isinstance(model, DistributedModel):
        raise TypeError(
            f"report: the model is of type {type(model).__name__}; distdl.distribute makes models to report on, or say "
            "P_x and shape"
        )
    if model.program is None:
        raise RuntimeError("report: the model has to be called before; only then are its shapes known")
    plan = model.program.plan
    kinds = [layout.kind for name, layout in model.layouts.items() if name in model.program.parameters]
    training = Training.of("report", max(kinds, key=kinds.count, default=OF_MODELS), optimizer)
    timeline = fullest_rank(plan, works_of(plan.recording, model.autocast), training)
    return _report(plan, timeline.kept, timeline.fullest)


def _report(plan: Plan, kept: Sequence[int], step: StepMemory) -> Report:
    used = {value for each in plan.steps for value in _parameters(each)}
    parameters = sum(value.nbytes for value in used if value not in plan.parameters)
    staying = sum(value.nbytes for value in used if value in plan.parameters)
    described = zip(plan.steps, plan.transfers(), kept, strict=True)
    return Report([_row(plan, *each) for each in described], parameters, plan.base.size, step, staying)


def _parameters(step: PlanStep) -> set[Value]:
    return {value for value in step.node.inputs if value.name and value.is_differentiable}


def _row(plan: Plan, step: PlanStep, transfers: Sequence[Transfer], kept: int) -> Row:
    node = step.node
    sent = sum(transfer.sent for transfer in transfers)
    workers = len(workers_of(step, plan))
    sent += received_within(step)[0] * workers
    first = plan.placement(node.outputs[0])
    splits = first.splits if isinstance(first, Blocks) else None
    memory = sum(_largest(plan.placement(value), value) for value in node.outputs)
    used = _parameters(step)
    weights, share = sum(value.nbytes for value in used), sum(_largest(plan.placement(value), value) for value in used)
    shape, gathered = node.outputs[0].shape, node in plan.gathered
    return Row(node.path, node.key, shape, splits, workers, sent, memory, gathered, kept, weights, share, step.overlap)


def _largest(place: Placement, value: Value) -> int:
    return place.largest() * value.dtype.itemsize if isinstance(place, Blocks) else value.nbytes


def _blocks(row: Row) -> str:
    percentage = f" (+{row.overlap - 1:.0%})" if row.overlap > 1 else ""
    return "on each" if row.splits is None else "x".join(map(str, row.splits)) + percentage or "one"


def _weights(row: Row) -> str:
    return _mib(row.weights) if row.share == row.weights else f"{_mib(row.share)} of {_mib(row.weights)}"


def _mib(count: int) -> str:
    return f"{count / MIB:.2f}" if count else "-"


# The picture

_LINE, _LEFT, _WIDTH = 16, 430, 260


def _picture_of_report(shown: Report) -> str:
    most = max([row.memory for row in shown.rows] + [1])
    lines = [
        text(8, _LINE, "module"),
        text(_LEFT - 150, _LINE, "operation"),
        text(_LEFT, _LINE, "memory a rank"),
        text(_LEFT + _WIDTH + 10, _LINE, "blocks; MiB sent"),
    ]
    for i, row in enumerate(shown.rows, start=2):
        width = max(1, round(_WIDTH * row.memory / most))
        color = "#999999" if row.splits is None else "#d62728" if row.gathered else "#1f77b4"
        lines.append(f'<rect x="{_LEFT}" y="{i * _LINE - 10}" width="{width}" height="11" fill="{color}"/>')
        lines.append(text(8, i * _LINE, row.path[-36:]))
        lines.append(text(_LEFT - 150, i * _LINE, row.operation[:20]))
        blocks, color_of_text = _blocks(row), "#d95f02" if row.sent else "black"
        sent = f"; {_mib(row.sent)} sent" if row.sent else ""
        lines.append(text(_LEFT + _WIDTH + 10, i * _LINE, blocks + sent, color_of_text))
        if row.sent:
            lines.append(
                f'<line x1="0" x2="{_LEFT + _WIDTH}" y1="{i * _LINE - 12}" y2="{i * _LINE - 12}" stroke="#d95f02"/>'
            )
    total = f"{len(shown.rows)} operations, {_mib(shown.sent)} MiB sent, {_mib(shown.parameters)} MiB of parameters"
    lines.append(text(8, (len(shown.rows) + 2.3) * _LINE, total))
    return document(_LEFT + _WIDTH + 220, _LINE * (len(shown.rows) + 3), lines)
