"""Means and variances of elements on several workers.

Each worker computes the moments of its block: count, mean, and the sum of squared deviations from its mean. Chan's
formula merges them. A sum of squares would lose a small variance beside a large mean.

Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from distdl import operators
from distdl.nn.kernels.block_moments import DeferredScale, moments, per_channel, scaled
from distdl.partitions.grid import Grid


@dataclass(frozen=True)
class MomentBlock:
    """A worker's block (N, C, *others), and the moments of its channels.

    Attributes:
        x, deferred: the block, and the factor that its backward pass may defer to the moments; see :func:`scaled`.
        pivot: the mean, rounded to the precision of the block.
        mean: the mean in double precision: rounding of a large mean would exceed a small variance of the workers'
            means.
        squares: the sum of squared deviations from the mean, in double precision.
    """

    x: torch.Tensor
    deferred: DeferredScale | None
    pivot: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor

    @staticmethod
    def of(x: torch.Tensor) -> MomentBlock:
        """The block and its moments, which are 0 for empty channels."""
        x, deferred, (pivot, remainder, squares) = moments(x)
        return MomentBlock(x, deferred, pivot, pivot.double() + remainder, squares)

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
        """(block - mean) / sqrt(variance + eps) * weight + bias, with values by channel.

        ``beyond`` replaces a variance beyond the range of the block's dtype. With infinity the result is 0, as in
        torch's batch and instance normalization. torch's layer and group normalization give nan or 0, depending on the
        order of elements: nan shows the overflow.

        ``centered`` subtracts before it multiplies, as torch's layer normalization does and its batch normalization
        does not: a mean much larger than the deviations causes no error. It reads the block once more.
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
    """Gathers moments of workers along some axes, which have parts of the same groups.

    Args:
        grid: the workers; this rank is in it.
        sizes: of the blocks along each dimension.

    Attributes:
        counts: the number of elements of each moment, by worker in rank order.

    Constructed in a set-up, after a vote on all arguments. Calling is collective over the workers along the axes.
    """

    def __init__(self, grid: Grid, axes: Sequence[int], sizes: Sequence[Sequence[int]], dims: Sequence[int]) -> None:
        ranks = grid.side_by_side(grid.place, axes)
        places = [grid.index(grid.ranks.index(rank)) for rank in ranks]
        self.counts = [math.prod(sizes[d][place[d]] for d in dims) for place in places]
        self._gather = operators.all_gather_among(grid.line(ranks)) if len(ranks) > 1 else None

    def __call__(self, *values: torch.Tensor) -> torch.Tensor:
        """All workers' values, of one shape on each, worker after worker."""
        message = torch.stack(values).reshape(-1)  # torch.cat would lose empty tensors in second derivatives
        return message if self._gather is None else self._gather(message)

    def merged(self, block: MomentBlock) -> tuple[torch.Tensor, torch.Tensor]:
        means, squares = self(block.mean, block.squares).view(len(self.counts), 2, -1).unbind(1)
        return merge(means, squares, self.counts, (0,))


def merge(
    means: torch.Tensor, squares: torch.Tensor, counts: Sequence[int], dims: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chan's formula for any number of parts: mean and sum of squared deviations of their union.

    Args:
        means, squares: of the parts, of shape (workers, *groups).
        counts: the number of elements in each part, by worker.
        dims: the dimensions along which parts are merged, including the first.
    """
    n = torch.tensor(counts, dtype=means.dtype, device=means.device).view(-1, *[1] * (means.dim() - 1))
    total = sum(counts) * math.prod(means.shape[d] for d in dims if d != 0)
    mean = (n * means).sum(dims, keepdim=True) / max(total, 1)
    deviations = (means - mean).masked_fill(n == 0, 0.0)  # whose square may be infinite
    return mean.squeeze(dims), (squares + n * deviations.square()).sum(dims)
