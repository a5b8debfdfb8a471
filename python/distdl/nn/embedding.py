"""Embeddings of indices in blocks, by a table that is whole or split."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from distdl import operators
from distdl.collective.construction import PartitionLike, partitions_behind_first, tell
from distdl.collective.grid import Grid
from distdl.nn.embedding_bag import DistributedEmbeddingBag
from distdl.nn.table import Table
from distdl.parameters.layout import Interval
from distdl.partition import Partition

__all__ = ["DistributedEmbedding", "DistributedEmbeddingBag"]


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
