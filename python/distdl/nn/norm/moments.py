"""Means and variances of elements that are spread over workers.

Each worker computes the moments of its block: count, mean, and the sum of squared deviations from that mean. Chan's
formula merges them. A sum of squares in place of the deviations would lose a small variance beside a large mean.

Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from distdl import operators
from distdl.collective.grid import Grid
from distdl.nn.norm.block_moments import DeferredScale, moments, per_channel, scaled


@dataclass(frozen=True)
class Block:
    """A worker's block (N, C, *others), and the moments of its channels.

    Attributes:
        x, deferred: the block, and the factor that its backward pass may leave to the moments'; see :func:`scaled`.
        pivot: the mean, rounded to the precision of the block.
        mean: the exact mean, in double precision: a large mean of single precision is rounded too much for a small
            variance of the workers' means.
        squares: the sum of squared deviations from the mean, in double precision.
    """

    x: torch.Tensor
    deferred: DeferredScale | None
    pivot: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor

    @staticmethod
    def of(x: torch.Tensor) -> Block:
        """The block and its moments, which are 0 for channels without elements."""
        x, deferred, (pivot, rest, squares) = moments(x)
        return Block(x, deferred, pivot, pivot.double() + rest, squares)

    def normalized(
        self,
        mean: torch.Tensor,
        variance: torch.Tensor,
        eps: float,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        centered: bool = False,
        beyond: float = math.inf,
    ) -> torch.Tensor:
        """(block - mean) / sqrt(variance + eps) * weight + bias, of which all are values of the channels.

        ``beyond`` stands in for a variance that the precision of the block cannot hold. By infinity the result is 0,
        as in torch's batch and instance normalization. Its layer and group normalization give NaN or 0, which of them
        depends on the order of the elements: NaN shows that the values have left the range.

        ``centered`` subtracts before it multiplies, as torch's layer normalization does and its batch normalization
        does not: a mean much larger than the deviations leaves no error. It passes over the block once more.
        """
        x, deferred, pivot = self.x, self.deferred, self.pivot
        if centered:
            pivot = mean.detach().to(x.dtype)
            x, deferred = x - per_channel(pivot, x), None
        variance = variance.masked_fill(variance > torch.finfo(x.dtype).max, beyond)
        scale = (variance + eps).rsqrt()
        if weight is not None:
            scale = scale * weight
        shift = (pivot.double() - mean) * scale
        if bias is not None:
            shift = shift + bias
        left = torch.zeros_like(pivot) if centered else pivot  # to be subtracted
        return scaled(x, deferred, left, scale.to(x.dtype), shift.to(x.dtype))


class Gathering:
    """Brings together what the workers along some axes have of the same groups.

    Args:
        grid: the workers, of which this rank is one.
        axes: workers that differ along these have parts of the same groups.
        sizes: of the blocks along each dimension.
        dims: those that the moments are taken over.

    Attributes:
        counts: how many elements each moment of each of these workers is of, in rank order.

    A layer makes it in its set-up, where its ranks have agreed on all arguments. Calling is collective over the
    workers along the axes.
    """

    def __init__(self, grid: Grid, axes: Sequence[int], sizes: Sequence[Sequence[int]], dims: Sequence[int]) -> None:
        ranks = grid.side_by_side(grid.place, axes)
        places = [grid.index(grid.ranks.index(rank)) for rank in ranks]
        self.counts = [math.prod(sizes[d][place[d]] for d in dims) for place in places]
        self._gather = operators.all_gather_among(grid.line(ranks)) if len(ranks) > 1 else None

    def __call__(self, *mine: torch.Tensor) -> torch.Tensor:
        """All workers' values, which are of one shape on each, one worker after the other."""
        message = torch.stack(mine).reshape(-1)  # torch.cat would lose those without elements from second derivatives
        return message if self._gather is None else self._gather(message)

    def merged(self, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and sum of squared deviations of each channel over all workers."""
        means, squares = self(block.mean, block.squares).view(len(self.counts), 2, -1).unbind(1)
        return merge(means, squares, self.counts, (0,))


def merge(
    means: torch.Tensor, squares: torch.Tensor, counts: Sequence[int], dims: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chan's formula for any number of parts at once: mean and sum of squared deviations of the parts together.

    Args:
        means, squares: those of the parts, of shape (workers, *groups).
        counts: for each worker, of how many elements each of its parts is.
        dims: the dimensions along which parts are merged, the first among them.
    """
    n = torch.tensor(counts, dtype=means.dtype, device=means.device).view(-1, *[1] * (means.dim() - 1))
    total = sum(counts) * math.prod(means.shape[d] for d in dims if d != 0)
    mean = (n * means).sum(dims, keepdim=True) / max(total, 1)
    return mean.squeeze(dims), (squares + n * (means - mean).square()).sum(dims)
