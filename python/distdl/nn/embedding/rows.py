"""Embeddings of indices in blocks, with a whole or split table."""

from __future__ import annotations

from dataclasses import KW_ONLY

import torch

from distdl.nn.base.option_types import (
    Device,
    Dtype,
    Flag,
    FurtherPartition,
    Integer,
    Natural,
    PartitionsFirst,
    option,
    with_partitions_first,
)
from distdl.nn.embedding.table import Norm, Table
from distdl.partitions.construction import PartitionLike, tell

__all__ = ["DistributedEmbedding"]


@with_partitions_first
class DistributedEmbedding(PartitionsFirst, Table):
    """Looks up the rows of a table by indices in blocks: ``torch.nn.Embedding``.

    Args:
        P_x: the partition of the indices, with as many dimensions; any may be split.
        num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, device, dtype: as
            in ``torch.nn.Embedding``. Frequencies are counted in the whole input.
        P_w: the workers with blocks of the table: ``[*groups, rows, features]``, with groups along each dimension of
            P_x, as many or 1, or ``[rows, features]`` for a single group. A group looks up the indices of the workers
            of P_x at its place. Any ranks.

    Without P_w every worker of P_x uses the whole table: see :func:`distdl.parameter_layout`. With P_w each worker
    looks up the indices in its block; the results are summed over the rows and gathered on P_x.

    Shape:
        Indices of any shape, int64 or int32, in blocks of any sizes over P_x; the result ``(*, embedding_dim)`` in the
        same blocks on the same workers.

    Attributes:
        weight: this worker's balanced block of the table (num_embeddings, embedding_dim).

    Raises:
        IndexError: on all ranks, if an index of any worker is out of range.
        ValueError: on all ranks, if the partitions do not match, the indices are not in blocks over P_x, padding_idx is
            out of range, or sparse=True and several workers share a block of the table: their summed gradients are
            dense.
        RuntimeError: on all ranks, if the indices are of another dtype.

    Source: M. Shoeybi et al., "Megatron-LM" (2019), for split rows; the same seed gives the table of
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html.
    """

    num_embeddings: Natural
    embedding_dim: Natural
    padding_idx: Integer | None = None
    max_norm: Norm | None = None
    norm_type: Norm = 2.0
    scale_grad_by_freq: Flag = False
    sparse: Flag = False
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    P_w: FurtherPartition = option(default=None)

    def result_dims(self, dims: int) -> int:
        return dims + 1

    def compute(self, input: torch.Tensor) -> torch.Tensor:
        return self.rows_of(input)

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
        """Make the layer from a table, as ``torch.nn.Embedding.from_pretrained`` does.

        Args:
            P_x, P_w: as in the constructor.
            embeddings: the whole table, of the same shape and dtype on all ranks, with the values on ``root``. freeze,
                padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: as in torch.nn.
            root: the rank whose values are used.

        Raises:
            TypeError, ValueError: on all ranks, if ``embeddings`` is not a table, and exceptions of the constructor.

        Collective like constructing the layer.
        """
        if not isinstance(embeddings, torch.Tensor) or embeddings.dim() != 2:
            description = list(embeddings.shape) if isinstance(embeddings, torch.Tensor) else type(embeddings).__name__
            problem = TypeError(f"DistributedEmbedding: embeddings must be a tensor of 2 dimensions, not {description}")
            tell(cls.__name__, problem, [P_x, P_w])
            raise problem
        twin = torch.nn.Embedding(*embeddings.shape, _weight=embeddings, _freeze=freeze)
        return cls.from_sequential(
            twin, P_x, root=root, P_w=P_w, padding_idx=padding_idx, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, sparse=sparse,
        )  # fmt: skip
