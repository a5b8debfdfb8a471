"""What the replicas of a model tell each other before each step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from distdl.collective.grid import Grid


@dataclass(frozen=True)
class Step:
    """What all ranks know of the next step.

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
        ValueError: on all ranks, if they differ in ``synchronizes`` or ``trained``, or one of them has an error.
        RuntimeError: on all ranks, if one of them is in another call, or has ended.

    Collective over the ranks.
    """
    mine = json.dumps([samples, synchronizes, trained, "" if error is None else str(error)])
    same, texts = grid.host_exchange().compare("a training step of DataParallel", mine)
    views = [json.loads(text) for text in ([mine] * grid.size if same else texts)]
    for rank, (_, _, _, problem) in zip(grid.ranks, views, strict=True):
        if problem:
            raise ValueError(f"DataParallel: {problem} (raised on rank {rank})")
    synchronizing = [view[1] for view in views if view[0] is not None]
    if len(set(synchronizing)) > 1 or len({view[2] for view in views}) > 1:
        raise ValueError(
            "DataParallel: some ranks are within no_sync() and some are not, or requires_grad of parameters differs; "
            f"(gradients are summed, hash of what is trained), rank by rank: {[view[1:3] for view in views]}"
        )
    workers = grid.size // grid.shape[0]
    counts = [[view[0] for view in views[i : i + workers]] for i in range(0, grid.size, workers)]
    running = [i for i, replica in enumerate(counts) if replica[0] is not None]
    return Step([sum(count or 0.0 for count in replica) for replica in counts], running, any(synchronizing))
