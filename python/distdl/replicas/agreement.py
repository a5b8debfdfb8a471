"""Agreement of a model's replicas on each step."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distdl.partitions.comparison import View, differing_views, error_for_all, refuse_difference
from distdl.partitions.grid import Grid

_STEP = "a training step of DataParallel"
_BEGIN = "the beginning of a backward pass of DataParallel"
_END = "the end of a backward pass of DataParallel"
_PLACES = (_STEP, _BEGIN, _END)


@dataclass(frozen=True)
class TrainingStep:
    """The next step, as all ranks know it.

    Attributes:
        samples: the number of samples of each replica.
        running: the replicas that have not left their loop, in order.
        synchronizes: whether gradients are summed in the backward pass.
    """

    samples: Sequence[float]
    running: Sequence[int]
    synchronizes: bool

    def weight(self, replica: int) -> float:
        """The samples of a replica over the mean of all replicas; 1 if no replica has samples."""
        total = sum(self.samples)
        return self.samples[replica] * len(self.samples) / total if total else 1.0


def begin_step(
    grid: Grid, samples: float | None, synchronizes: bool, trained: str, error: Exception | None = None
) -> TrainingStep:
    """Begin a step together.

    Args:
        grid: the ranks, replicas along the first dimension. Collective over them.
        samples: the samples of this rank's input; None on a replica that has left its loop.
        synchronizes: whether this rank sums gradients in the backward pass.
        trained: a hash of the set of trained parameters.
        error: an error of this rank, which all ranks raise.

    Raises:
        ValueError: on all ranks, if they differ in ``synchronizes`` or ``trained``, or samples are not countable.
        RuntimeError: on all ranks, if any of them is in another call, or has ended.
    """
    answers = _exchange_at(grid, _STEP, [samples, synchronizes, trained], error)
    synchronizing = [answer[1] for answer in answers if answer[0] is not None]
    if len(set(synchronizing)) > 1 or len({answer[2] for answer in answers}) > 1:
        raise ValueError(
            "DataParallel: some ranks are within no_sync() and some are not, or requires_grad of parameters differs; "
            f"(gradients are summed, hash of what is trained), rank by rank: {[tuple(a[1:]) for a in answers]}"
        )
    counts = [answer[0] or 0.0 for answer in answers]
    if not (all(count >= 0 for count in counts) and math.isfinite(sum(counts))):
        raise ValueError(
            f"DataParallel: the ranks {list(grid.ranks)} have {counts} samples; their numbers have to be finite, and "
            "at least 0"
        )
    workers = grid.size // grid.shape[0]
    samples_of_replicas = [sum(counts[i : i + workers]) for i in range(0, grid.size, workers)]
    running = [i for i in range(grid.shape[0]) if answers[i * workers][0] is not None]
    return TrainingStep(samples_of_replicas, running, any(synchronizing))


def begin_pass(grid: Grid) -> None:
    """Begin a backward pass on all ranks, which the sums of gradients do not compare. Collective over the ranks."""
    _exchange_at(grid, _BEGIN, [])


def end_pass(grid: Grid, left: bool = False, error: Exception | None = None) -> None:
    """End a backward pass on all ranks: with the sums of all gradients, or with an exception.

    Args:
        grid: the ranks. Collective over them.
        left: whether an exception ended the pass on this rank, so that the sums lack its gradients.
        error: the error that kept this rank from adding its gradients to the sums.
    """
    answers = _exchange_at(grid, _END, [left], error)
    left_on = [rank for rank, (is_left,) in zip(grid.ranks, answers, strict=True) if is_left]
    if 0 < len(left_on) < grid.size:
        raise RuntimeError(
            f"DataParallel: an exception ended the backward pass on the ranks {left_on} and on no others, so that the "
            "sums of this step lack their gradients"
        )


def _exchange_at(grid: Grid, place: str, values: Sequence[object], error: Exception | None = None) -> list[list[Any]]:
    """Exchange values at a place in a step. Raises on all ranks if some are at other places. Collective."""
    view = View(place, options=(("told", json.dumps(values)),))
    if error is not None:
        error = error_for_all("DataParallel", {}, error)
    views = differing_views(place, grid.host_exchange(), view, error) or dict.fromkeys(grid.ranks, view)
    places = {rank: view.operation for rank, view in views.items()}
    if set(places.values()) != {place}:
        if not set(places.values()) <= set(_PLACES):
            refuse_difference(views)
        raise RuntimeError(
            "DataParallel: the ranks are at different places of a step, as after an exception that some of them alone "
            f"have caught; {'; '.join(f'rank {rank}: {other}' for rank, other in places.items())}"
        )
    return [json.loads(view.options[0][1]) for view in views.values()]
