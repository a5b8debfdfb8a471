"""Moments of elements on several workers.

Each worker sends the moments of its channels; the C++ core merges them and normalizes the block, see
``src/kernels/moment_groups.hpp``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from distdl import _core, operators
from distdl.partitions.grid import Grid


class Gathering:
    """Gathers values of workers along some axes, which have parts of the same groups.

    Args:
        grid: the workers; this rank is in it.
        sizes: of the blocks along each dimension.
        dims: the dimensions whose elements are parts of a channel.

    Attributes:
        places: of these workers in the grid, in rank order.
        counts: the number of elements of a channel, by worker.

    Constructed in a set-up, after a vote on all arguments. Calling is collective over the workers along the axes.
    """

    def __init__(self, grid: Grid, axes: Sequence[int], sizes: Sequence[Sequence[int]], dims: Sequence[int]) -> None:
        ranks = grid.side_by_side(grid.place, axes)
        self.places = [grid.index(grid.ranks.index(rank)) for rank in ranks]
        self.counts = [math.prod(sizes[d][place[d]] for d in dims) for place in self.places]
        self._gather = operators.all_gather_among(grid.line(ranks)) if len(ranks) > 1 else None

    def __call__(self, message: torch.Tensor) -> torch.Tensor:
        """The messages of all workers, one after the other."""
        return message if self._gather is None else self._gather(message)


class SharedMoments:
    """The moments of groups that several workers share.

    Attributes:
        gather: brings the messages of all workers.
        groups: the groups, for the core.
    """

    def __init__(self, gather: Gathering, groups: _core.MomentGroups) -> None:
        self.gather, self.groups = gather, groups

    @staticmethod
    def by_channel(gather: Gathering, dims: tuple[int, int], channels: int) -> SharedMoments:
        """Moments of groups that are a channel each.

        Args:
            dims: the first dimension of the channels, and the first after them.
            channels: their number in this worker's block.
        """
        own = torch.arange(channels, device="cpu")
        workers = len(gather.counts)
        counts = torch.tensor(gather.counts, dtype=torch.double, device="cpu").repeat_interleave(channels)
        sizes, total = [channels] * workers, sum(gather.counts)
        return SharedMoments(gather, _core.MomentGroups(dims, sizes, own.repeat(workers), counts, own, channels, total))
