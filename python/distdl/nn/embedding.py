"""Embeddings of indices in blocks, by a table that is whole or split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.collective.construction import PartitionLike, partitions_behind_first, tell
from distdl.collective.grid import Grid
from distdl.nn.checked import CheckedLayer
from distdl.nn.options import integer
from distdl.nn.precision import wide
from distdl.parameters.layout import Interval, cut
from distdl.partition import Partition

__all__ = ["DistributedEmbedding"]


class RowFactors(torch.autograd.Function):
    """Multiplies the rows of a table by some factors, and those of its gradient by others, where they are given."""

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


class Table(CheckedLayer):
    """The base class of layers that look up rows of a table.

    The workers of ``self.workers``, a grid ``[*groups, rows, features]``, use the table in blocks; those of a group
    have the same indices.
    """

    error = IndexError
    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool

    def check_options(self) -> None:
        name = type(self).__name__
        for which in ("num_embeddings", "embedding_dim"):
            if integer(name, getattr(self, which), which) < 0:
                raise RuntimeError(f"{name}: {which}={getattr(self, which)}; it must not be negative")
        for which in ("scale_grad_by_freq", "sparse"):
            if not isinstance(getattr(self, which), bool):
                raise TypeError(f"{name}: {which}={getattr(self, which)!r}; it has to be a bool")
        for which in ("max_norm", "norm_type"):
            value = getattr(self, which)
            if not isinstance(value, int | float) and (which == "norm_type" or value is not None):
                raise TypeError(f"{name}: {which}={value!r}; it has to be a number")
        rows = self.num_embeddings
        if self.padding_idx is not None:
            if not -rows <= integer(name, self.padding_idx, "padding_idx") < rows:
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
        if self.sparse and self.layouts["weight"].users > 1:
            raise ValueError(
                f"{name}: sparse=True where {self.layouts['weight'].users} workers use the same block of the table; "
                "their gradients are summed, which are dense then. Use P_w with one worker for each block"
            )
        splits_features = self.workers.shape[-1] > 1
        if self.max_norm is not None and splits_features and not 0 < self.norm_type < math.inf:
            raise ValueError(
                f"{name}: norm_type={self.norm_type} of features that P_w splits; it must be positive and finite"
            )

    def workers_of_table(self) -> Grid:
        """The workers that use the table: every worker of P_x all of it."""
        return self.grid.reshaped((*self.grid.shape, 1, 1)) if self.grid.known else self.grid.reshaped((1, 1))

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

    # Indices out of range

    def problem_here(self, inputs: Sequence[object]) -> str:
        x = inputs[0] if inputs else None
        if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int64, torch.int32):
            return ""  # which set_up refuses
        try:
            lowest, highest = torch.aminmax(x) if x.numel() else (0, -1)
        except (RuntimeError, NotImplementedError) as error:
            return f"has indices that cannot be compared: {error}"
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
        self.blocks(self.grid)

    # The table

    def table(self, indices: torch.Tensor) -> torch.Tensor:
        """This worker's block of the table, for the indices of its group: renormalized, its gradient scaled."""
        (weight,) = self.parameters_in_use()
        if self.max_norm is None and not self.scale_grad_by_freq:
            return weight
        start, stop = self.rows
        within = indices[(indices >= start) & (indices < stop)] - start
        counts = torch.bincount(within, minlength=stop - start)
        if self._count is not None:
            counts = self._count(counts)
        scales = 1.0 / counts.clamp(min=1).to(wide(weight).dtype).unsqueeze(1) if self.scale_grad_by_freq else None
        factors = None if self.max_norm is None else self._to_largest_norm(weight.detach(), counts)
        adjusted: torch.Tensor = RowFactors.apply(weight, factors, scales)
        owned = self.layouts["weight"].intervals
        if factors is not None and owned is not None:  # after the use: the block in use may be the one that lives here
            with torch.no_grad():
                self.weight.mul_(factors[owned[0][0] - start : owned[0][1] - start])
        return adjusted

    def _to_largest_norm(self, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """What rows are multiplied by, so that the norms of rows in use do not exceed the largest."""
        assert self.max_norm is not None
        if self._sum_norms is None:
            norms = wide(weight).norm(self.norm_type, 1, keepdim=True)
        else:
            powers = wide(weight).abs().pow(self.norm_type).sum(1, keepdim=True)
            norms = self._sum_norms(powers).pow(1 / self.norm_type)
        exceeds = (counts.unsqueeze(1) > 0) & (norms > self.max_norm)
        return torch.where(exceeds, self.max_norm / (norms + 1e-7), 1.0)


class DistributedEmbedding(Table):
    """Looks up the rows of a table by indices in blocks: ``torch.nn.Embedding``.

    Args:
        P_x: the partition of the indices, with as many dimensions; any of them may be split.
        num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, device, dtype: as
            in ``torch.nn.Embedding``. Frequencies are those in the whole input.
        P_w: the workers that use the table in blocks: ``[*groups, rows, features]``, with a dimension of groups for
            each one of P_x, of as many workers or of one. A group looks up the indices of all workers of P_x at its
            place. Where there is one group, ``[rows, features]`` is enough. The ranks may be those of P_x, or others.

    Without P_w every worker of P_x uses the whole table; where it lives, :func:`distdl.parameter_layout` says. With P_w
    each worker looks up what is in its block, and the results are summed over the rows and put together on P_x.

    Shape:
        Indices of any shape, int64 or int32, in blocks of any sizes over P_x; the result ``(*, embedding_dim)`` in the
        same blocks on the same workers. Zero volume on all other ranks.

    Attributes:
        weight: this worker's balanced block of the table (num_embeddings, embedding_dim).

    Raises:
        IndexError: on all ranks, if an index of any worker is out of range.
        ValueError: on all ranks, if the partitions do not fit each other, the indices are in no blocks over P_x,
            padding_idx is out of range, or sparse=True where several workers use the same block of the table: a sum of
            their gradients is dense.
        RuntimeError: on all ranks, if the indices are of another dtype.

    Constructing is collective over the communicator that the partitions come from, calling over their ranks.

    Source: M. Shoeybi et al., "Megatron-LM" (2019), for split rows; with the same seed the table is that of
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html.
    """

    P_w: Partition | None

    @partitions_behind_first("P_w")
    def __init__(
        self,
        P_x: PartitionLike,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        P_w: PartitionLike | None = None,
    ) -> None:
        super().__init__(locals())

    def workers_of_table(self) -> Grid:
        """P_w with all of its dimensions, or P_x."""
        if self.P_w is None or not self.grid.known:
            return super().workers_of_table()
        x, w = self.grid, self.P_w.grid
        shape = (*(1,) * x.dim, *w.shape) if len(w.shape) == 2 else w.shape
        if len(shape) != x.dim + 2 or any(g not in (1, n) for g, n in zip(shape, x.shape, strict=False)):
            raise ValueError(
                f"DistributedEmbedding: P_x has shape {list(x.shape)} and P_w {list(w.shape)}; P_w must be [rows, "
                "features], or [*groups, rows, features] with 1 or as many groups as workers in each dimension of P_x"
            )
        return w.reshaped(shape)

    def prepare(self) -> None:
        super().prepare()
        w, x = self.workers, self.grid
        self._to_workers: operators.Operator | None = None
        self._back: operators.Operator | None = None
        self._in_place = w.ranks == x.ranks and w.shape == (*x.shape, 1, 1)
        self._sum = None if w.shape[-2] == 1 else operators.sum_reduce(w, w.first_along([w.dim - 2]))

    def set_up(self) -> None:
        """Construct the exchanges that bring indices to the groups, and the result back."""
        super().set_up()
        if self._in_place:
            return
        x, w = self.grid, self.workers
        blocks = [_intervals(sizes) for sizes in self.blocks(x)]
        groups = [one if g > 1 else [(0, one[-1][1])] for one, g in zip(blocks, w.shape, strict=False)]
        wanted = [*groups, *([(0, 1)] * n for n in w.shape[-2:])]
        self._to_workers = operators.interval_exchange("DistributedEmbedding", x.reshaped((*x.shape, 1, 1)), w, wanted)
        first = w.first_along([w.dim - 2])
        first, features = first.reshaped((*first.shape[:-2], first.shape[-1])), [(0, self.embedding_dim)]
        self._back = operators.interval_exchange(
            "DistributedEmbedding", first, x.reshaped((*x.shape, 1)), [*blocks, features]
        )

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        """Look up this rank's block of the indices."""
        x = input
        if self._to_workers is not None:
            x = self._to_workers(x[..., None, None] if self.grid.active else x)
            x = x[..., 0, 0] if self.workers.active else x
        y = self._looked_up(x, self.table(x)) if self.workers.active else self.parameters_in_use()[0].flatten()[:0]
        y = y if self._sum is None else self._sum(y)
        return y if self._back is None else self._back(y)

    def _looked_up(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """The rows of this worker's block of the table; zeros for all other indices."""
        start, stop = self.rows
        padding = self.padding_idx
        padding = None if padding is None or not start <= padding < stop else padding - start
        if stop - start == self.num_embeddings:
            return self._rows_at(x, table, padding)
        flat = x.reshape(-1)
        mine = ((flat >= start) & (flat < stop)).nonzero().squeeze(1)
        found = self._rows_at(flat[mine] - start, table, padding)
        result = found.new_zeros(flat.numel(), table.shape[1]).index_copy(0, mine, found)
        return result.reshape(*x.shape, table.shape[1])

    def _rows_at(self, x: torch.Tensor, table: torch.Tensor, padding: int | None) -> torch.Tensor:
        if x.numel() == 0 and not self.sparse:  # of which torch has no second derivatives
            return table.flatten()[:0].reshape(*x.shape, table.shape[1])
        return F.embedding(x, table, padding, sparse=self.sparse)

    @classmethod
    def from_pretrained(
        cls,
        P_x: PartitionLike,
        embeddings: torch.Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        P_w: PartitionLike | None = None,
        root: int = 0,
    ) -> DistributedEmbedding:
        """The layer with this table, as ``torch.nn.Embedding.from_pretrained`` makes it.

        Args:
            P_x, P_w: as in the constructor.
            embeddings: the whole table, of the same shape and dtype on all ranks; the values are those on ``root``.
            freeze, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: as in torch.nn.
            root: the rank whose values count.

        Raises:
            TypeError, ValueError: on all ranks, if ``embeddings`` is no table, and what the constructor raises.

        Collective like constructing the layer.
        """
        if not isinstance(embeddings, torch.Tensor) or embeddings.dim() != 2:
            what = list(embeddings.shape) if isinstance(embeddings, torch.Tensor) else type(embeddings).__name__
            problem = TypeError(f"DistributedEmbedding: embeddings must be a tensor of 2 dimensions, not {what}")
            tell(cls.__name__, problem, [P_x, P_w])
            raise problem
        twin = torch.nn.Embedding(*embeddings.shape, _weight=embeddings, _freeze=freeze)
        return cls.from_sequential(
            twin, P_x, root=root, P_w=P_w, padding_idx=padding_idx, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, sparse=sparse,
        )  # fmt: skip


def _intervals(sizes: Sequence[int]) -> list[Interval]:
    """(start, stop) of blocks of these sizes."""
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
