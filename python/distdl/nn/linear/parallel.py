"""The column and the row form of a linear layer, whose input and output are in blocks on the same workers."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.collective.construction import PartitionLike
from distdl.collective.grid import Grid
from distdl.nn.layer import Layer
from distdl.nn.linear.features import check_dtypes, check_features, declare_linear, term
from distdl.nn.options import integer

__all__ = ["DistributedLinearAllGather", "DistributedLinearReduceScatter"]


class _LinearOnALine(Layer):
    """A linear layer whose weight is in blocks along the last axis of P_x: each line of workers there has all of it."""

    in_features: int
    out_features: int
    sequence_dim: int | None

    def __init__(
        self,
        P_x: PartitionLike,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        sequence_dim: int | None = None,
    ) -> None:
        super().__init__(locals())

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        """Linear."""
        return (torch.nn.Linear,)

    def check_options(self) -> None:
        name, n = type(self).__name__, self.grid.dim
        check_features(self, "in_features", "out_features")
        if self.grid.known and n == 0:
            raise ValueError(f"{name}: P_x has no dimensions; its last dimension is that of the features")
        if self.sequence_dim is not None:
            dim = integer(name, self.sequence_dim, "sequence_dim")
            if self.grid.known and not (-n <= dim < n and dim % n < n - 1):
                raise ValueError(
                    f"{name}: sequence_dim={dim}; P_x has shape {list(self.grid.shape)}, and it must be one of its "
                    "dimensions before the last"
                )
            self.sequence_dim = dim
        self._declare_blocks((self.out_features, self.in_features), max(n - 1, 0))

    def _declare_blocks(self, shape: tuple[int, int], last: int) -> None:
        """Declare weight and bias, in blocks along the last axis of P_x."""
        raise NotImplementedError

    def _moved(self) -> int:
        """The dimension of the tensors whose blocks are gathered or scattered."""
        return self.grid.dim - 1 if self.sequence_dim is None else self.sequence_dim % self.grid.dim

    def _line(self) -> Grid:
        """The workers that differ from this one along the last axis alone, as blocks of what is gathered."""
        n = self.grid.dim
        shape = [self.grid.shape[-1] if d == self._moved() else 1 for d in range(n)]
        return self.grid.related(self.grid.side_by_side(self.grid.place, (n - 1,)), shape)

    def _with_tokens(self) -> Grid:
        """P_x where the last axis splits the tokens: as the minor part of the axis that splits them anyway."""
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


class DistributedLinearAllGather(_LinearOnALine):
    r"""Applies :math:`y = x W^T + b` where W is in blocks of rows: each worker computes its features of y.

    x is gathered along the last axis of P_x, and each worker applies its block of W and b. It is the first of the two
    linear layers of a pair: :class:`DistributedLinearReduceScatter` is the second one.

    Args:
        P_x: the partition of input and result: ``[*leading, p]``.
        in_features, out_features, bias, device, dtype: as in ``torch.nn.Linear``.
        sequence_dim: where the last axis of P_x splits the tokens of the input in place of its features: the dimension
            of the tokens.

    Shape:
        ``(*leading, in_features)``, as P_x has dimensions, in any blocks. With ``sequence_dim`` every worker has all
        features of its tokens; these are cut along axis ``sequence_dim`` of P_x, and each block is cut again along the
        last axis. The result ``(*leading, out_features)`` is in the input's blocks of the leading dimensions, with
        ``sequence_dim`` in blocks that are gathered, and in balanced blocks of features; zero volume on all other
        ranks.

    Attributes:
        weight, bias: this worker's balanced block of the rows of the weight (out_features, in_features), and of the
            bias. Workers that differ along leading axes use the same: see :func:`distdl.parameter_layout`.

    Raises:
        ValueError: on all ranks, if the input is not in blocks as described, or ``sequence_dim`` is not a leading one.
        RuntimeError: on all ranks, if the dtypes of input, weight and bias differ, without autocast.

    Collective: constructing over P_x's parent communicator, calling over P_x.

    Source: V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html.
    """

    def _declare_blocks(self, shape: tuple[int, int], last: int) -> None:
        declare_linear(self, self.grid, shape, (last, None))

    def prepare(self) -> None:
        """Make the gathering along this worker's line, unless it is alone there."""
        alone = not self.grid.active or self.grid.shape[-1] == 1
        self._gather = None if alone else operators.all_gather_among(self._line(), self._moved())

    def set_up(self) -> None:
        self._check_features_of_input(sum(self.blocks(self._with_tokens())[-1]))

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer to this rank's block of the input."""
        if not self.grid.active:
            return self.without_part(input)
        x = input if self._gather is None else self._gather(input)
        weight, bias = (*self.parameters_in_use(), None)[:2]
        return F.linear(x, weight, bias)


class DistributedLinearReduceScatter(_LinearOnALine):
    r"""Applies :math:`y = x W^T + b` where W is in blocks of columns: each worker reads its features of x.

    The results of the workers along the last axis of P_x are terms of a sum, of which each worker receives a block. It
    is the second of the two linear layers of a pair: :class:`DistributedLinearAllGather` is the first one.

    Args:
        P_x: the partition of input and result: ``[*leading, p]``.
        in_features, out_features, bias, device, dtype: as in ``torch.nn.Linear``.
        sequence_dim: where the last axis of P_x is to split the tokens of the result in place of its features: the
            dimension of the tokens.

    Shape:
        ``(*leading, in_features)``, as P_x has dimensions, in balanced blocks of features and any blocks of leading
        dimensions. The result ``(*leading, out_features)`` is in the same blocks of the leading dimensions and in
        balanced blocks of features. With ``sequence_dim`` every worker has all features; each block of tokens is cut
        into balanced blocks along the last axis of P_x. Zero volume on all other ranks.

    Attributes:
        weight: this worker's balanced block of the columns of the weight (out_features, in_features). Workers that
            differ along leading axes use the same: see :func:`distdl.parameter_layout`.
        bias: all of the bias, on the workers at place 0 of the last axis, which add it; no rows elsewhere.

    Raises:
        ValueError: on all ranks, if the input is not in blocks as described, or ``sequence_dim`` is not a leading one.
        RuntimeError: on all ranks, if the dtypes of input, weight and bias differ, without autocast.

    Collective: constructing over P_x's parent communicator, calling over P_x.

    Source: V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022);
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html.
    """

    def _declare_blocks(self, shape: tuple[int, int], last: int) -> None:
        declare_linear(self, self.grid, shape, (None, last), first_of=(last,))

    def prepare(self) -> None:
        """Make the sum along this worker's line, unless it is alone there."""
        alone = not self.grid.active or self.grid.shape[-1] == 1
        self._scatter = None if alone else operators.reduce_scatter_among(self._line(), self._moved())

    def set_up(self) -> None:
        self._check_features_of_input(sum(self.blocks(self.grid)[-1]))
        self.check_balanced(self.grid.dim - 1, self.in_features, "in_features")

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer to this rank's block of the input."""
        if not self.grid.active:
            return self.without_part(input)
        y = term(input, *self.parameters_in_use(), place=self.grid.place[-1])
        return y if self._scatter is None else self._scatter(y)
