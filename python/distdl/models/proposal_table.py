"""Proposals for a model: a table, a picture, and the answer to the question on how many ranks it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Self

from distdl.models.plan.machine import GIB, Machine
from distdl.models.plan.step_memory import StepMemory
from distdl.models.svg import document, text
from distdl.models.text_table import MIB, numbers, text_table
from distdl.partitions.partition import Partition

_ALIKE = 1.05  # a factor between times that count as the same
_LIMITS = {
    "weights": "the weights of the owner; distdl.parameter_layout('sharded') spreads them",
    "optimizer": "the optimizer's state at the owner; distdl.parameter_layout('sharded') spreads it",
    "gradients": "the gradients of the owner; distdl.parameter_layout('sharded') spreads them",
    "copies": "the parameters, which each rank uses whole",
    "kept": "what the backward pass needs; activation checkpoints keep less",
    "passing": "results and gradients of large layers",
}
"""The reasons for which a model does not fit, by the largest part of its memory."""


@dataclass(frozen=True)
class Proposal:
    """A way to distribute a model: ``distdl.distribute(model, proposal.P_x, plan=proposal.plan)``.

    Attributes:
        P_x: how the inputs are split. In a job of ranks that were planned for without them, it is made by
            ``P_world.create_cartesian_topology_partition(proposal.P_x.shape)``.
        plan: the partitions of modules that are split in another way, or words that split features.
        memory: estimated bytes on the fullest rank in a step of training.
        sent: estimated bytes that travel in a step, of all ranks.
        seconds: estimated time of a step.
        parts: the parts of the memory, in bytes.
        block: the shape of the largest block of the first input.
        overlap: how many times the elements of its blocks a worker computes of a result, at most, where convolutions
            exchange their halos at once: see ``halos`` in :func:`distdl.distribute`.
    """

    P_x: Partition
    plan: Mapping[str, Partition | str]
    memory: int
    sent: int
    seconds: float
    parts: StepMemory = field(default_factory=StepMemory)
    block: tuple[int, ...] = ()
    overlap: float = 1.0

    @property
    def thickness(self) -> int:
        """The smallest extent of a block in a dimension that is split."""
        return min((n for n, p in zip(self.block, self.P_x.shape, strict=False) if p > 1), default=1 << 62)

    def __str__(self) -> str:
        shown = str([*map(int, self.P_x.shape)])
        for name, way in [*self.plan.items()][:1]:
            if isinstance(way, str):
                others = len(self.plan) - 1
                return f"{shown}, {name} {way}" + (f" and {others} more" if others else "")
            shown += f", from {name} on {[*map(int, way.shape)]}"
        return shown + (f", overlaps of {self.overlap - 1:.0%}" if self.overlap > 1 else "")


class Proposals(tuple[Proposal, ...]):
    """Proposals, the fastest that fit first. Printed, they are a table with the answer of :meth:`answer`.

    Attributes:
        machine: the machine that they are for.
        by_ranks: the first proposal for each number of ranks.
    """

    machine: Machine
    by_ranks: Mapping[int, Proposal]

    def __new__(cls, proposals: Iterable[Proposal], machine: Machine, most: int | None = None) -> Self:
        """Put proposals in order; `most` of them are kept."""
        ordered = _ordered(proposals, machine)
        self = super().__new__(cls, ordered[:most])
        by_ranks: dict[int, Proposal] = {}
        for proposal in ordered:
            by_ranks.setdefault(int(proposal.P_x.size), proposal)
        self.machine, self.by_ranks = machine, dict(sorted(by_ranks.items()))
        return self

    def fits(self, proposal: Proposal) -> bool:
        """Whether the machine has enough memory."""
        return proposal.memory <= self.machine.bytes_of_rank

    def answer(self) -> str:
        """From how many ranks on the model fits, and what limits it, in a line."""
        size = f"{self.machine.bytes_of_rank / GIB:.3g} GiB a rank"
        fitting = [ranks for ranks, proposal in self.by_ranks.items() if self.fits(proposal)]
        if not fitting:
            least = min(self.by_ranks.values(), key=lambda proposal: proposal.memory)
            return f"does not fit in {size}: on {least.P_x.size} ranks it takes {_takes(least)}"
        first = self.by_ranks[fitting[0]]
        smaller = [proposal for ranks, proposal in self.by_ranks.items() if ranks < fitting[0]]
        shown = f"fits in {size} from {_ranks(fitting[0])} on, as {first}: {_size(first.memory)}"
        return shown + (f"; on {_ranks(int(smaller[-1].P_x.size))} it takes {_takes(smaller[-1])}" if smaller else "")

    def picture(self, path: str | Path) -> None:
        """Draw memory and time over the number of ranks as an SVG file."""
        Path(path).write_text(_picture_of(self))

    def table_by_ranks(self) -> str:
        """The first proposal for each number of ranks, as a table."""
        return "\n".join(self._table([*self.by_ranks.values()]))

    def _table(self, proposals: Sequence[Proposal]) -> list[str]:
        unit, of_second = ("s", 1) if any(proposal.seconds >= 100 for proposal in proposals) else ("ms", 1000)
        table = [("ranks", f"{unit} a step", "MiB a rank", "MiB sent", "block", "partition")]
        for proposal in proposals:
            shown = str(proposal) + ("" if self.fits(proposal) else " (does not fit)")
            sizes = f"{proposal.memory / MIB:.1f}", f"{proposal.sent / MIB:.1f}"
            seconds = f"{proposal.seconds * of_second:.1f}"
            table.append((str(proposal.P_x.size), seconds, *sizes, numbers(proposal.block), shown))
        return text_table(table, left=[4, 5])

    def __str__(self) -> str:
        why = [f"Of times within {_ALIKE - 1:.0%} thicker blocks come first: their halos are smaller parts."]
        return "\n".join([*self._table(self), *(why if _is_reordered(self) else []), self.answer()])


def _ordered(proposals: Iterable[Proposal], machine: Machine) -> list[Proposal]:
    """The proposals that fit first, by time; of about the same time those with thicker blocks first."""
    groups: list[list[Proposal]] = []
    fits = {True: 0, False: 1}
    for proposal in sorted(proposals, key=lambda p: (fits[p.memory <= machine.bytes_of_rank], p.seconds)):
        first = groups[-1][0] if groups else proposal
        is_alike = proposal.seconds <= _ALIKE * first.seconds
        if (
            groups
            and is_alike
            and (first.memory <= machine.bytes_of_rank) == (proposal.memory <= machine.bytes_of_rank)
        ):
            groups[-1].append(proposal)
        else:
            groups.append([proposal])
    return [proposal for group in groups for proposal in sorted(group, key=lambda p: (-p.thickness, p.seconds))]


def _is_reordered(proposals: Sequence[Proposal]) -> bool:
    times = [proposal.seconds for proposal in proposals]
    return times != sorted(times)


def _takes(proposal: Proposal) -> str:
    part, nbytes = max(vars(proposal.parts).items(), key=lambda item: item[1])
    return f"{_size(proposal.memory)}, {nbytes / max(1, proposal.memory):.0%} of it {_LIMITS[part]}"


def _size(nbytes: float) -> str:
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.1f} MiB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


# The picture

_LINE, _LEFT, _WIDTH = 18, 70, 260


def _picture_of(proposals: Proposals) -> str:
    """For each number of ranks a bar for the memory, with a line where the machine's ends, and a bar for the time."""
    shown = [*proposals.by_ranks.values()]
    memory = proposals.machine.bytes_of_rank
    most = max(proposal.memory for proposal in shown)
    slowest = max(proposal.seconds for proposal in shown)
    limit = _LEFT + round(_WIDTH * memory / most) if memory < most else 0
    second = _LEFT + _WIDTH + 110
    lines = [text(8, _LINE, "ranks"), text(_LEFT, _LINE, "memory a rank"), text(second, _LINE, "time a step")]
    for i, proposal in enumerate(shown, start=2):
        y, fits = i * _LINE, proposals.fits(proposal)
        bars = (
            (_LEFT, proposal.memory / most, "#1f77b4" if fits else "#d62728", _size(proposal.memory)),
            (second, proposal.seconds / slowest, "#999999", f"{_seconds(proposal.seconds)}  {proposal}"),
        )
        lines.append(text(8, y, str(proposal.P_x.size)))
        for x, part, color, label in bars:
            width = max(1, round(_WIDTH * part))
            lines.append(f'<rect x="{x}" y="{y - 11}" width="{width}" height="13" fill="{color}"/>')
            start = x + width + 6
            if x == _LEFT and start - 4 < limit < start + 8 * len(label):  # beside the line, not under it
                start = limit + 6
            lines.append(text(start, y, label))
    height = _LINE * (len(shown) + 4)
    if memory < most:
        x = limit
        end = _LINE * (len(shown) + 1) + 4
        lines.append(f'<line x1="{x}" x2="{x}" y1="{_LINE + 4}" y2="{end}" stroke="black" stroke-dasharray="4"/>')
    lines.append(text(8, height - _LINE, proposals.answer()))
    return document(second + _WIDTH + 320, height, lines)
