"""Agreement of a model's replicas before and in each step."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distdl.collective.comparison import View, exchange_views, naming, refuse_difference
from distdl.collective.grid import Grid

_STEP = "a training step of DataParallel"
_BEGIN = "the beginning of a backward pass of DataParallel"
_END = "the end of a backward pass of DataParallel"
_PLACES = (_STEP, _BEGIN, _END)


@dataclass(frozen=True)
class Step:
    """Facts about the next step that all ranks know.

    Attributes:
        samples: the samples of each replica, as its ranks count them together.
        running: the replicas that have not left their loop, in order.
        synchronizes: whether gradients are summed in the backward pass.
    """

    samples: Sequence[float]
    running: Sequence[int]
    synchronizes: bool

    def weight(self, replica: int) -> float:
        """The samples of a replica over the mean of all replicas; 1 where nobody has samples."""
        total = sum(self.samples)
        return self.samples[replica] * len(self.samples) / total if total else 1.0


def agree(grid: Grid, samples: float | None, synchronizes: bool, trained: str, error: Exception | None = None) -> Step:
    """Begin a step together.

    Args:
        grid: the ranks, replicas along the first dimension.
        samples: of this rank's input; None on a replica that has left its loop.
        synchronizes: whether this rank sums gradients in the backward pass.
        trained: says which parameters are trained.
        error: what is wrong on this rank.

    Raises:
        ValueError: on all ranks, if they differ in ``synchronizes`` or ``trained``, or if samples cannot be counted.
        RuntimeError: on all ranks, if one of them is in another call, or has ended.

    An error of one rank is raised on all ranks. Collective over the ranks.
    """
    told = _meet(grid, _STEP, [samples, synchronizes, trained], error)
    synchronizing = [one[1] for one in told if one[0] is not None]
    if len(set(synchronizing)) > 1 or len({one[2] for one in told}) > 1:
        raise ValueError(
            "DataParallel: some ranks are within no_sync() and some are not, or requires_grad of parameters differs; "
            f"(gradients are summed, hash of what is trained), rank by rank: {[tuple(one[1:]) for one in told]}"
        )
    own = [one[0] or 0.0 for one in told]
    if not (all(count >= 0 for count in own) and math.isfinite(sum(own))):
        raise ValueError(
            f"DataParallel: the ranks {list(grid.ranks)} have {own} samples; their numbers have to be finite, and at "
            "least 0"
        )
    workers = grid.size // grid.shape[0]
    counts = [sum(own[i : i + workers]) for i in range(0, grid.size, workers)]
    running = [i for i in range(grid.shape[0]) if told[i * workers][0] is not None]
    return Step(counts, running, any(synchronizing))


def begin_pass(grid: Grid) -> None:
    """Begin a backward pass together, before anything travels in it. Collective over the ranks.

    The sums of gradients run among the ranks that have the same parameters. If another rank were elsewhere, only this
    agreement of all ranks would meet it.
    """
    _meet(grid, _BEGIN, [])


def end_pass(grid: Grid, left: bool = False, error: Exception | None = None) -> None:
    """End a backward pass together: with the sums of all gradients, or with an exception on all ranks.

    Args:
        grid: the ranks.
        left: whether the pass was left on this rank by an exception, and its sums had to do without its gradients.
        error: why this rank could not add its gradients to the sums.

    Collective over the ranks.
    """
    told = _meet(grid, _END, [left], error)
    without = [rank for rank, (is_left,) in zip(grid.ranks, told, strict=True) if is_left]
    if 0 < len(without) < grid.size:
        raise RuntimeError(
            f"DataParallel: an exception ended the backward pass on the ranks {without} and on no others, so that the "
            "sums of this step have no gradients of theirs"
        )


def _meet(grid: Grid, where: str, mine: Sequence[object], error: Exception | None = None) -> list[list[Any]]:
    """Exchange values at a point of a step. Raises on all ranks if some are elsewhere. Collective."""
    view = View(where, options=(("told", json.dumps(mine)),))
    views = exchange_views(where, grid, view, None if error is None else naming("DataParallel", {}, error))
    places = {rank: one.what for rank, one in views.items()}
    if any(place != where for place in places.values()):
        if not all(place in _PLACES for place in places.values()):
            refuse_difference(views)
        raise RuntimeError(
            "DataParallel: the ranks are at different places of a step, as after an exception that some of them alone "
            f"have caught; {'; '.join(f'rank {rank}: {place}' for rank, place in places.items())}"
        )
    return [json.loads(one.options[0][1]) for one in views.values()]
