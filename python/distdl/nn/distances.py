"""Distances and similarities of vectors, which may be split over workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.modules.graph import empty_of, empty_result
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Integer, Number, with_options
from distdl.nn.base.precision import wide
from distdl.parameters.transport import zero_of
from distdl.partitions.grid import Grid

__all__ = ["DistributedCosineSimilarity", "DistributedPairwiseDistance"]


class BlockNorms:
    """Norms of vectors in blocks along an axis, with the derivatives of the norms of whole vectors.

    Args:
        grid: the workers; tensors have as many dimensions.
        axis: the axis of the grid, and the dimension of the vectors.
        p: the order of the norms.

    Constructing and calling are collective over the workers; only workers with the first blocks receive results.
    """

    def __init__(self, grid: Grid, axis: int, p: float) -> None:
        self._axis, self._p, self._gather = axis, p, operators.all_gather(grid, [axis])
        self._gather_known = operators.all_gather(grid, [axis])  # an operator called twice in a layer votes

    def __call__(self, *vectors: torch.Tensor) -> list[torch.Tensor]:
        """The norms of several vectors of equal shapes, without the dimension; one gather for all."""
        axis, p = self._axis, self._p
        if 1 < p < math.inf:
            units, known = self.units(*vectors)
            sums = [_sum_of_powers(unit, p, axis) for unit in units]
            return [with_derivatives(norm, total, p) for norm, total in zip(known, self.summed(*sums), strict=True)]
        norms = [self._norm(x) for x in vectors]
        ties = [_ties(x, norm, axis) for x, norm in zip(vectors, norms, strict=True)] if math.isinf(p) else []
        norms = self._gathered(*norms, *ties)
        if ties:
            pairs = zip(norms[: len(vectors)], norms[len(vectors) :], strict=True)
            return [_largest_or_smallest(norm, counts, p, axis) for norm, counts in pairs]
        order = 1.0 if p == 0 else p  # numbers of elements are added
        return [torch.linalg.vector_norm(norm, order, axis) for norm in norms]

    def units(self, *vectors: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """This worker's blocks of the vectors, divided by the vectors' norms; and the norms, as constants.

        The norm of a zero block has no second derivative, even if the norm of the vector has; so derivatives are taken
        of sums over these quotients, which cannot overflow. Vectors without a nonzero norm are not divided.
        """
        with torch.no_grad():
            parts = self._gathered(*(self._norm(vector.detach()) for vector in vectors), by=self._gather_known)
            known = [torch.linalg.vector_norm(part.detach(), self._p, self._axis) for part in parts]
        divisors = [norm.masked_fill(norm == 0, 1.0).unsqueeze(self._axis) for norm in known]
        return [x / divisor for x, divisor in zip(vectors, divisors, strict=True)], known

    def summed(self, *parts: torch.Tensor) -> list[torch.Tensor]:
        """Sums over all blocks of tensors with extent 1 along the axis, without this dimension."""
        return [part.sum(self._axis) for part in self._gathered(*parts)]

    def _gathered(self, *parts: torch.Tensor, by: operators.Operator | None = None) -> list[torch.Tensor]:
        """Gather tensors of extent 1 along the axis from all blocks, side by side."""
        together = torch.cat(torch.broadcast_tensors(*parts), self._axis)
        gather = self._gather if by is None else by
        return list(gather(together).unflatten(self._axis, (-1, len(parts))).unbind(self._axis + 1))

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        if self._p == 0:  # a count without derivatives in torch: all workers need the same graph
            return x.detach().count_nonzero(self._axis).unsqueeze(self._axis).to(x.dtype) + zero_of(x)
        if x.shape[self._axis]:
            return torch.linalg.vector_norm(x, self._p, self._axis, keepdim=True)
        neutral = torch.inf if self._p < 0 else 0.0
        return x.new_full([1 if d == self._axis else n for d, n in enumerate(x.shape)], neutral) + zero_of(x)


def _sum_of_powers(x: torch.Tensor, p: float, axis: int) -> torch.Tensor:
    return (x.square() if p == 2 else x.abs().pow(p)).sum(axis, keepdim=True)


def with_derivatives(norm: torch.Tensor, sums: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """A known norm of order p, with the derivatives of the p-th root of ``sums``, relative to it.

    Args:
        norm, sums: the norm, as a constant, and the sum of powers of the vector divided by it, about 1.

    As in torch, the derivative is 0 where the norm is 0 or infinite, and the elements are finite.
    """
    root = torch.where((norm > 0) & norm.isfinite(), sums, 1.0).pow(1 / p)
    return norm * (1 + (root - root.detach()))


def _ties(x: torch.Tensor, norm: torch.Tensor, axis: int) -> torch.Tensor:
    return (x.detach().abs() == norm.detach()).sum(axis, keepdim=True).to(x.dtype)


def _largest_or_smallest(norms: torch.Tensor, ties: torch.Tensor, p: float, axis: int) -> torch.Tensor:
    """The norm of order inf or -inf, from the norms of the blocks. All elements that tie share its derivative."""
    result = norms.detach().amax(axis) if p > 0 else norms.detach().amin(axis)
    ties = ties.detach().masked_fill(norms.detach() != result.unsqueeze(axis), 0.0)
    shares = ties / ties.sum(axis, keepdim=True).clamp_min(1.0)
    mean = torch.where(ties > 0, norms * shares, 0.0).sum(axis)
    # The mean of equal numbers may be rounded; only its derivative is used.
    return torch.where(mean.isinf(), mean, result + (mean - mean.detach()))


def cosine(norms: BlockNorms, x1: torch.Tensor, x2: torch.Tensor, axis: int, eps: float) -> torch.Tensor:
    """The cosine of vectors in blocks; as in torch, norms below ``eps`` count as ``eps``."""
    (u1, u2), known = norms.units(x1, x2)
    squares = [_sum_of_powers(unit, 2.0, axis) for unit in (u1, u2)]
    product, *sums = norms.summed((u1 * u2).sum(axis, keepdim=True), *squares)
    for norm, total in zip(known, sums, strict=True):
        divisor = _at_least(with_derivatives(norm, total), eps) / norm.masked_fill(norm == 0, 1.0)
        product = product / torch.where(norm.isinf(), 1.0, divisor)
    return product


def _at_least(norm: torch.Tensor, eps: float) -> torch.Tensor:
    return norm + (eps - norm.detach()).clamp_min(0.0)


class _Distance(Layer):
    """The common part of the layers: a number for each pair of vectors, from two tensors in blocks."""

    tensors: ClassVar[tuple[str, ...]] = ("x1", "x2")
    eps: Number
    function: ClassVar[Callable[..., torch.Tensor]]
    p = 2.0
    keepdim = False

    def check_options(self) -> None:
        name, dims = type(self).__name__, self.grid.dim
        dim = self.chosen_dim()
        self._axis = dim % max(dims, 1)
        if self.grid.known and not -dims <= dim < dims:
            raise ValueError(f"{name}: the vectors are along dimension {dim}; P_x has shape {list(self.grid.shape)}")

    def chosen_dim(self) -> int:
        raise NotImplementedError

    def prepare(self) -> None:
        self._splits = self.grid.known and self.grid.shape[self._axis] > 1
        self._norms = BlockNorms(self.grid, self._axis, self.p) if self._splits else None

    def set_up(self) -> None:
        name = type(self).__name__
        for tensor in range(2):
            self.blocks(self.grid, tensor)  # raises if they do not match
        pairs = zip(self.structure(self.grid), self.structure(self.grid, 1), strict=True)
        for worker, ((first, dtype), (second, second_dtype)) in enumerate(pairs):
            extents = enumerate(zip(first, second, strict=True))
            fit = all(n == m or (1 in (n, m) and d != self._axis) for d, (n, m) in extents)
            if not (fit and dtype.is_floating_point and second_dtype.is_floating_point):
                raise ValueError(
                    f"{name}: worker {worker} of P_x has an x1 of shape {first} ({dtype}) and an x2 of shape {second} "
                    f"({second_dtype}); they must be of floating point and have equal shapes, but for extents of 1 in "
                    f"dimensions other than {self._axis}"
                )

    def result_dims(self, dims: int) -> int:
        return dims - (not self.keepdim)

    def compute(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(x1) + zero_of(empty_result(x2)).to(x1.dtype)
        if self._norms is None:
            return self.on_whole(x1, x2)
        y = self.on_blocks(self._norms, wide(x1), wide(x2))
        if self.grid.place[self._axis]:
            return empty_of(y.unsqueeze(self._axis) if self.keepdim else y).to(self._dtype(x1, x2))
        return (y.unsqueeze(self._axis) if self.keepdim else y).to(self._dtype(x1, x2))

    def _dtype(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.dtype:
        empty = [x.detach().new_empty((1,) * x.dim()) for x in (x1, x2)]
        return self.on_whole(*empty).dtype

    def on_whole(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def on_blocks(self, norms: BlockNorms, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        """The numbers if vectors are split, without the dimension of the vectors."""
        raise NotImplementedError


@with_options
class DistributedCosineSimilarity(_Distance):
    """The cosine of the angles between vectors: ``torch.nn.CosineSimilarity`` in blocks.

    Args:
        P_x: the partition of both inputs; any dimension may be split.
        dim, eps: as in ``torch.nn.CosineSimilarity``.

    Shape:
        Two inputs in blocks over P_x, of the same shape; in dimensions other than ``dim`` either may have extent 1 on
        all workers, to be broadcast. The output has no dimension ``dim``, and is on the workers with the first parts of
        the vectors.

    Raises:
        ValueError: on all ranks, if ``dim`` is not a dimension of P_x, the inputs are not of floating point, or their
            blocks do not match.
    """

    dim: Integer = 1
    eps: Number = 1e-8

    def chosen_dim(self) -> int:
        return self.dim

    def on_whole(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return F.cosine_similarity(x1, x2, self._axis, self.eps)

    def on_blocks(self, norms: BlockNorms, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return cosine(norms, x1, x2, self._axis, self.eps)


@with_options
class DistributedPairwiseDistance(_Distance):
    r"""The p-norm :math:`\|x_1 - x_2 + \epsilon\|_p` of the differences of vectors: ``torch.nn.PairwiseDistance``.

    Args:
        P_x: the partition of both inputs; any dimension may be split.
        p, eps, keepdim: as in ``torch.nn.PairwiseDistance``.

    Shape:
        Two inputs in blocks over P_x, of the same shape; in all dimensions but the last either may have extent 1 on all
        workers, to be broadcast. The output has no last dimension, or extent 1 there with ``keepdim``, and is on the
        workers with the first parts of the vectors.

    Raises:
        ValueError: on all ranks, if P_x has no dimension, the inputs are not of floating point, or their blocks do not
            match.
    """

    p: Number = 2.0
    eps: Number = 1e-6
    keepdim: bool = False

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        """The options of this layer; torch.nn stores p as ``norm``."""
        return {"p": module.norm, "eps": module.eps, "keepdim": module.keepdim}

    def chosen_dim(self) -> int:
        return -1

    def on_whole(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)

    def on_blocks(self, norms: BlockNorms, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return norms(x1 - x2 + self.eps)[0]
