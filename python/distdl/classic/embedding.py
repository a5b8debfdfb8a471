"""Embeddings as programs written for DistDL know them: the features are split over the last dimension of P_x."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from distdl.classic.arguments import old_arguments
from distdl.classic.keys import OldLayer, Sharded
from distdl.classic.nothing import nothing_for
from distdl.nn.base.layer import Layer
from distdl.nn.embedding import DistributedEmbedding as DistributedTable
from distdl.nn.embedding.table import Table
from distdl.parameters.initial import fill
from distdl.partitions.construction import constructing
from distdl.partitions.grid import Grid


@old_arguments(
    "P_x num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse", DistributedTable,
    _weight=None, _freeze=False,
)  # fmt: skip
class DistributedEmbedding(OldLayer, Table):
    """Looks up the rows of a table whose features are split over the last dimension of P_x.

    Args:
        P_x: the partition of the result: ``[*indices, p]``.
        num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight, _freeze:
            as in ``torch.nn.Embedding``; ``_weight`` is the whole table, the same on all ranks.

    Shape:
        Indices in blocks over the leading dimensions of P_x; workers that differ along its last dimension alone pass
        the same ones. The result ``(*, embedding_dim)`` in the same blocks, and in balanced blocks of features.

    Raises:
        ValueError: on all ranks, if P_x has no dimensions, ``_weight`` another shape, or indices are in no such blocks.
        IndexError: on all ranks, if an index of any worker is out of range.
    """

    def construct(self, _weight: torch.Tensor | None, _freeze: bool, **options: object) -> None:
        super().construct(**options)
        shape_of_table = None if _weight is None else list(_weight.shape)
        with constructing(
            type(self).__name__, {"P_x": self.grid}, {"_weight of shape": shape_of_table, "_freeze": bool(_freeze)}
        ):
            if shape_of_table not in (None, expected := [self.num_embeddings, self.embedding_dim]):
                raise ValueError(f"{type(self).__name__}: _weight has shape {shape_of_table}; it must be {expected}")
        if _weight is not None:
            whole = _weight.detach()
            fill(self.get_parameter("weight"), self.layouts["weight"], lambda table: table.copy_(whole))
        self.get_parameter("weight").requires_grad_(not _freeze)

    def construct_ours(self, **options: object) -> None:
        Layer.__init__(self, options)

    def workers_of_table(self) -> Grid:
        """P_x: groups of workers with the same indices, each worker of which has all rows of its features."""
        if not self.grid.known:
            return super().workers_of_table()
        if self.grid.dim == 0:
            raise ValueError(
                f"{type(self).__name__}: P_x has no dimensions; its last dimension is that of the features"
            )
        return self.grid.reshaped((*self.grid.shape[:-1], 1, self.grid.shape[-1]))

    def check_blocks(self) -> None:
        """Raise where indices are in no blocks, or differ in shape along the last dimension of P_x."""
        everyone, dim = self.structure(self.grid), self.grid.dim - 1
        for worker, (shape, _) in enumerate(everyone):
            place = self.grid.index(worker)
            firsts = [self.grid.worker([*(0,) * d, place[d], *(0,) * (dim - d)]) for d in range(dim)]
            expected = [everyone[first][0][d] if d < len(everyone[first][0]) else 0 for d, first in enumerate(firsts)]
            if shape != expected:
                raise ValueError(
                    f"{type(self).__name__}: worker {worker} of P_x has indices of shape {shape}, where other workers "
                    f"have blocks of {expected}; P_x has shape {list(self.grid.shape)}, and its last one splits the "
                    "features"
                )

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        """Look up this rank's block of the indices."""
        if not self.grid.active:
            return self.parameters_in_use()[0].flatten()[:0].reshape(nothing_for(input).shape)
        table = self.table(input)
        if input.numel() == 0 and not self.sparse:  # of which torch has no second derivatives
            return table.flatten()[:0].reshape(*input.shape, table.shape[1])
        return F.embedding(input, table, self.padding_idx, sparse=self.sparse)


class DistributedEmbeddingZero(Sharded, DistributedEmbedding):
    """:class:`DistributedEmbedding` of which each worker keeps a part of the table, which is gathered for use."""
