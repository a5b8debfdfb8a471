"""Column-parallel and row-parallel linear layers, with input and output in blocks on the same workers."""

from __future__ import annotations

import itertools
from dataclasses import KW_ONLY

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import Device, Dtype, HasBias, Integer, Natural, option, with_options
from distdl.nn.linear.features import check_dtypes, declare_linear, term
from distdl.partitions.grid import Grid

__all__ = ["DistributedLinearAllGather", "DistributedLinearReduceScatter"]


@with_options
class _RowColumnLinear(Layer):
    """A linear layer with its weight in blocks along the last axis of P_x: each line of workers has all blocks."""

    in_features: Natural
    out_features: Natural
    bias: HasBias = option(default=True)
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    sequence_dim: Integer | None = None

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        return (torch.nn.Linear,)

    def check_options(self) -> None:
        name, n = type(self).__name__, self.grid.dim
        self.check_shape(n > 0, "it has no dimensions; its last dimension is that of the features")
        if self.sequence_dim is not None:
            dim = self.sequence_dim
            if self.grid.known and not (-n <= dim < n and dim % n < n - 1):
                raise ValueError(
                    f"{name}: sequence_dim={dim}; P_x has shape {list(self.grid.shape)}, and it must be one of its "
                    "dimensions before the last"
                )
        self._declare_blocks((self.out_features, self.in_features), max(n - 1, 0))

    def _declare_blocks(self, shape: tuple[int, int], last: int) -> None:
        raise NotImplementedError

    def _moved(self) -> int:
        return self.grid.dim - 1 if self.sequence_dim is None else self.sequence_dim % self.grid.dim

    def _line(self) -> Grid:
        """The workers along the last axis through this worker, as a grid of the moved blocks."""
        n = self.grid.dim
        shape = [self.grid.shape[-1] if d == self._moved() else 1 for d in range(n)]
        return self.grid.related(self.grid.side_by_side(self.grid.place, (n - 1,)), shape)

    def _with_tokens(self) -> Grid:
        """P_x with the last axis as the minor part of the axis of the tokens, if sequence_dim is set."""
        if self.sequence_dim is None:
            return self.grid
        grid, d = self.grid, self._moved()
        line = grid.shape[-1]
        shape = [*grid.shape[:d], grid.shape[d] * line, *grid.shape[d + 1 : -1], 1]
        ranks = []
        for index in itertools.product(*map(range, shape)):
            major, minor = divmod(index[d], line)
            ranks.append(grid.ranks[grid.worker([*index[:d], major, *index[d + 1 : -1], minor])])
        return grid.related(ranks, shape)

    def _check_features_of_input(self, features: int) -> None:
        if features != self.in_features:
            raise ValueError(
                f"{type(self).__name__}: the input has {features} features; in_features={self.in_features}"
            )
        check_dtypes(self, self.weight, self.bias, input=self.structure(self.grid)[0][1])


class DistributedLinearAllGather(_RowColumnLinear):
    r"""Applies :math:`y = x W^T + b` where W is in blocks of rows: each worker computes its features of y.

    x is gathered along the last axis of P_x, and each worker applies its block of W and b. It is the first layer of a
    pair; the second is :class:`DistributedLinearReduceScatter`.

    Args:
        P_x: the partition of input and result: ``[*leading, p]``.
        in_features, out_features, bias, device, dtype: as in ``torch.nn.Linear``.
        sequence_dim: the dimension of the tokens, if the last axis of P_x splits tokens of the input, not features.

    Shape:
        ``(*leading, in_features)``, as P_x, in any blocks. With ``sequence_dim`` workers have all features of tokens,
        which axis ``sequence_dim`` of P_x cuts into blocks, and the last axis into smaller blocks. The result
        ``(*leading, out_features)`` is in the input's (with ``sequence_dim``, gathered) leading blocks and in balanced
        blocks of features; zero volume on all other ranks.

    Attributes:
        weight, bias: this worker's balanced block of the rows of the weight (out_features, in_features), and of the
            bias. Workers along leading axes use the same block: see :func:`distdl.parameter_layout`.

    Raises:
        ValueError: on all ranks, if the input is not in such blocks, or ``sequence_dim`` is not a leading dimension.
        RuntimeError: on all ranks, if dtypes of input and parameters differ without autocast.

    Collective: constructing over P_x's parent communicator, calling over P_x.

    Source: V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html.
    """

    def _declare_blocks(self, shape: tuple[int, int], last: int) -> None:
        declare_linear(self, self.grid, shape, (last, None))

    def prepare(self) -> None:
        alone = not self.grid.active or self.grid.shape[-1] == 1
        self._gather = None if alone else operators.all_gather_among(self._line(), self._moved())

    def set_up(self) -> None:
        self._check_features_of_input(sum(self.blocks(self._with_tokens())[-1]))

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        x = input if self._gather is None else self._gather(input)
        weight, bias = (*self.parameters_in_use(), None)[:2]
        return F.linear(x, weight, bias)


class DistributedLinearReduceScatter(_RowColumnLinear):
    r"""Applies :math:`y = x W^T + b` where W is in blocks of columns: each worker reads its features of x.

    A reduce-scatter sums the results of the workers along the last axis of P_x. It is the second layer of a pair; the
    first is :class:`DistributedLinearAllGather`.

    Args:
        P_x: the partition of input and result: ``[*leading, p]``.
        in_features, out_features, bias, device, dtype: as in ``torch.nn.Linear``.
        sequence_dim: the dimension of the tokens, if the last axis of P_x shall split tokens of the result, not
            features.

    Shape:
        ``(*leading, in_features)``, as P_x, in balanced blocks of features and any leading blocks. The result
        ``(*leading, out_features)`` is in the same leading blocks and in balanced blocks of features; with
        ``sequence_dim`` it has all features, and the last axis of P_x cuts each block of tokens into balanced blocks.
        Zero volume on all other ranks.

    Attributes:
        weight: this worker's balanced block of the columns of the weight (out_features, in_features). Workers along
            leading axes use the same block: see :func:`distdl.parameter_layout`.
        bias: the whole bias on the workers at place 0 of the last axis, which add it; no rows elsewhere.

    Raises:
        ValueError: on all ranks, if the input is not in such blocks, or ``sequence_dim`` is not a leading dimension.
        RuntimeError: on all ranks, if dtypes of input and parameters differ without autocast.

    Collective: constructing over P_x's parent communicator, calling over P_x.

    Source: V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html.
    """

    def _declare_blocks(self, shape: tuple[int, int], last: int) -> None:
        declare_linear(self, self.grid, shape, (None, last), first_of=(last,))

    def prepare(self) -> None:
        alone = not self.grid.active or self.grid.shape[-1] == 1
        self._scatter = None if alone else operators.reduce_scatter_among(self._line(), self._moved())

    def set_up(self) -> None:
        self._check_features_of_input(sum(self.blocks(self.grid)[-1]))
        self.check_balanced(self.grid.dim - 1, self.in_features, "in_features")

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        if not self.grid.active:
            return self.without_part(input)
        y = term(input, *self.parameters_in_use(), place=self.grid.place[-1])
        return y if self._scatter is None else self._scatter(y)
