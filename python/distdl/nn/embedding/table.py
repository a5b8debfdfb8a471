"""Tables whose rows are looked up by indices in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.nn.base.option_types import Flag, Integer, Natural, must
from distdl.nn.base.precision import wide
from distdl.nn.base.value_checks import CheckedLayer
from distdl.partitions.boxes import Interval, block_intervals, cut
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition


class RowFactors(torch.autograd.Function):
    """Multiplies the rows of a table, and the rows of its gradient, by factors; None for 1."""

    @staticmethod
    def forward(
        ctx: Any, table: torch.Tensor, values: torch.Tensor | None, gradients: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.gradients = gradients
        return table.clone() if values is None else (table * values).to(table.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.gradients is not None:
            gradient = (gradient * ctx.gradients).to(gradient.dtype)
        return gradient, None, None


Norm: TypeAlias = Annotated[float, must(lambda value: isinstance(value, int | float), "be a number", TypeError)]


class Table(CheckedLayer):
    """The base class of layers that look up rows of a table.

    The workers of ``self.workers``, a grid ``[*groups, rows, features]``, hold blocks of the table; the workers of a
    group have the same indices.
    """

    error = IndexError
    P_w: Partition | None = None
    num_embeddings: Natural
    embedding_dim: Natural
    padding_idx: Integer | None
    max_norm: Norm | None
    norm_type: Norm
    scale_grad_by_freq: Flag
    sparse: Flag

    def check_options(self) -> None:
        name = type(self).__name__
        rows = self.num_embeddings
        if self.padding_idx is not None:
            if not -rows <= self.padding_idx < rows:
                raise ValueError(f"{name}: padding_idx={self.padding_idx}; it must be within num_embeddings={rows}")
            self.padding_idx %= rows
        self.workers = self.workers_of_table()
        axes = (self.workers.dim - 2, self.workers.dim - 1)
        self.declare_parameter("weight", self.workers, (rows, self.embedding_dim), axes, initialize=self._first_values)
        self._check_combinations(name)

    def _check_combinations(self, name: str) -> None:
        if self.sparse and self.scale_grad_by_freq:
            raise ValueError(f"{name}: scale_grad_by_freq is not supported with sparse gradients, as in torch.nn")
        if not self.workers.known:
            return
        if self.sparse and self.layouts["weight"].replicas > 1:
            raise ValueError(
                f"{name}: sparse=True where {self.layouts['weight'].replicas} workers use the same block of the table; "
                "their gradients are summed, which are dense then. Use P_w with one worker for each block"
            )
        splits_features = self.workers.shape[-1] > 1
        if self.max_norm is not None and splits_features and not 0 < self.norm_type < math.inf:
            raise ValueError(
                f"{name}: norm_type={self.norm_type} of features that P_w splits; it must be positive and finite"
            )

    def workers_of_table(self) -> Grid:
        """P_w with all of its dimensions; without it, every worker of P_x, with the whole table."""
        x, name = self.grid, type(self).__name__
        if self.P_w is None or not x.known:
            return x.reshaped((*x.shape, 1, 1)) if x.known else x.reshaped((1, 1))
        w = self.P_w.grid
        shape = (*(1,) * x.dim, *w.shape) if len(w.shape) == 2 else w.shape
        if len(shape) != x.dim + 2 or any(g not in (1, n) for g, n in zip(shape, x.shape, strict=False)):
            raise ValueError(
                f"{name}: P_x has shape {list(x.shape)} and P_w {list(w.shape)}; P_w must be [rows, "
                "features], or [*groups, rows, features] with 1 or as many groups as workers in each dimension of P_x"
            )
        return w.reshaped(shape)

    def _first_values(self, table: torch.Tensor) -> None:
        table.normal_()
        if self.padding_idx is not None:
            table[self.padding_idx].zero_()

    def prepare(self) -> None:
        groups = range(self.workers.dim - 2)
        counts = self.max_norm is not None or self.scale_grad_by_freq
        several = counts and math.prod(self.workers.shape[:-2]) > 1
        self._count = operators.all_sum_reduce(self.workers, groups) if several else None
        norms = self.max_norm is not None and self.workers.shape[-1] > 1
        self._sum_norms = operators.all_sum_reduce(self.workers, [self.workers.dim - 1]) if norms else None
        shape, place = self.workers.shape, self.workers.place if self.workers.active else (0,) * self.workers.dim
        self.rows: Interval = cut(self.num_embeddings, shape[-2])[place[-2]]
        w, x = self.workers, self.grid
        self._to_workers: operators.Operator | None = None
        self._back: operators.Operator | None = None
        self._in_place = self.P_w is None or (w.ranks == x.ranks and w.shape == (*x.shape, 1, 1))
        self._sum = None if w.shape[-2] == 1 else operators.sum_reduce(w, w.first_along([w.dim - 2]))

    # Indices out of range

    def local_error(self, inputs: Sequence[object]) -> str:
        x = inputs[0] if inputs else None
        if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int64, torch.int32):
            return ""  # set_up raises
        lowest, highest = torch.aminmax(x) if x.numel() else (0, -1)
        if lowest >= 0 and highest < self.num_embeddings:
            return ""
        return f"has indices from {lowest} to {highest}; the table has {self.num_embeddings} rows"

    def set_up(self) -> None:
        for worker, (shape, dtype) in enumerate(self.structure(self.grid)):
            if dtype not in (torch.int64, torch.int32):
                raise RuntimeError(
                    f"{type(self).__name__}: worker {worker} of P_x has an input of shape {shape} ({dtype}); "
                    "indices must be of dtype int64 or int32"
                )
        self.check_blocks()
        if not self._in_place:
            self._construct_exchanges()

    def check_blocks(self) -> None:
        self.blocks(self.grid)

    def _construct_exchanges(self) -> None:
        x, w = self.grid, self.workers
        blocks = [block_intervals(along) for along in self.blocks(x)]
        groups = [cuts if g > 1 else [(0, cuts[-1][1])] for cuts, g in zip(blocks, w.shape, strict=False)]
        wanted = [*groups, *([(0, 1)] * n for n in w.shape[-2:])]
        self._to_workers = operators.interval_exchange(type(self).__name__, x.reshaped((*x.shape, 1, 1)), w, wanted)
        first = w.first_along([w.dim - 2])
        first, features = first.reshaped((*first.shape[:-2], first.shape[-1])), [(0, self.embedding_dim)]
        self._back = operators.interval_exchange(
            type(self).__name__, first, x.reshaped((*x.shape, 1)), [*blocks, features]
        )

    # The table

    def table(self, indices: torch.Tensor) -> torch.Tensor:
        """This worker's block of the table for its group's indices, renormalized, with a scaled gradient."""
        (weight,) = self.parameters_in_use()
        if self.max_norm is None and not self.scale_grad_by_freq:
            return weight
        start, stop = self.rows
        within = indices[(indices >= start) & (indices < stop)] - start
        counts = torch.bincount(within, minlength=stop - start)
        if self._count is not None:
            counts = self._count(counts)
        scales = 1.0 / counts.clamp(min=1).to(wide(weight).dtype).unsqueeze(1) if self.scale_grad_by_freq else None
        factors = None if self.max_norm is None else self._norm_factors(weight.detach(), counts)
        adjusted: torch.Tensor = RowFactors.apply(weight, factors, scales)
        owned = self.layouts["weight"].intervals
        if factors is not None and owned is not None:  # after the use: the block may be the parameter itself
            with torch.no_grad():
                self.weight.mul_(factors[owned[0][0] - start : owned[0][1] - start])
        return adjusted

    def _norm_factors(self, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        assert self.max_norm is not None
        if self._sum_norms is None:
            norms = wide(weight).norm(self.norm_type, 1, keepdim=True)
        else:
            powers = wide(weight).abs().pow(self.norm_type).sum(1, keepdim=True)
            norms = self._sum_norms(powers).pow(1 / self.norm_type)
        exceeds = (counts.unsqueeze(1) > 0) & (norms > self.max_norm)
        return torch.where(exceeds, self.max_norm / (norms + 1e-7), 1.0)

    # The rows

    def rows_of(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows of this rank's block of indices. Every rank calls it."""
        x = indices
        if self._to_workers is not None:
            x = self._to_workers(x[..., None, None] if self.grid.active else x)
            x = x[..., 0, 0] if self.workers.active else x
        y = self._look_up(x, self.table(x)) if self.workers.active else self.parameters_in_use()[0].flatten()[:0]
        y = y if self._sum is None else self._sum(y)
        return y if self._back is None else self._back(y)

    def _look_up(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """The rows in this worker's block of the table; zeros for all other indices."""
        start, stop = self.rows
        padding = self.padding_idx
        padding = None if padding is None or not start <= padding < stop else padding - start
        if stop - start == self.num_embeddings:
            return self._rows_at(x, table, padding)
        flat = x.reshape(-1)
        places = ((flat >= start) & (flat < stop)).nonzero().squeeze(1)
        rows = self._rows_at(flat[places] - start, table, padding)
        result = rows.new_zeros(flat.numel(), table.shape[1]).index_copy(0, places, rows)
        return result.reshape(*x.shape, table.shape[1])

    def _rows_at(self, x: torch.Tensor, table: torch.Tensor, padding: int | None) -> torch.Tensor:
        if x.numel() == 0 and not self.sparse:  # torch has no second derivatives for it
            return table.flatten()[:0].reshape(*x.shape, table.shape[1])
        return F.embedding(x, table, padding, sparse=self.sparse)
