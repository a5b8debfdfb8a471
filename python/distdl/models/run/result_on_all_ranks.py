"""Bring a result that is not split, such as a loss, to every rank."""

from __future__ import annotations

import torch

from distdl.models.operations.placement import Blocks
from distdl.models.plan.redistribution import ReadRegions, Redistribution, connected_empty
from distdl.parameters.transport import zero_of
from distdl.partitions.grid import Grid


class ResultOnAllRanks:
    """Brings a whole result from its workers to every rank that calls the model.

    Every rank may call ``backward()`` with it. All ranks have the same values, so the gradient of worker 0 counts, and
    not their sum. The gradients of the other ranks only bring these into the backward pass.

    Args:
        place: the blocks of the workers that have it.
        shape: of the whole.
        like: a grid of the workers of the model. Constructing and calling are collective over its constructors.
    """

    def __init__(self, place: Blocks, shape: tuple[int, ...], like: Grid) -> None:
        self._counts = like.me == like.ranks[0]
        self._has_block = like.me in place.ranks
        self._redistribution = Redistribution("distribute", place, ReadRegions.whole(like.constructors), shape, like)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self._redistribution(x if self._has_block else connected_empty([x]))
        return y if self._counts else y.detach() + zero_of(y).to(y.dtype)
