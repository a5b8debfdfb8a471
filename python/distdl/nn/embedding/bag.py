"""Sums, means and maxima of bags of embeddings; each worker has its own bags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated

import torch
import torch.nn.functional as F

from distdl.nn.base.option_types import (
    Device,
    Dtype,
    Flag,
    FurtherPartition,
    Integer,
    Natural,
    PartitionsFirst,
    choice,
    option,
    with_partitions_first,
)
from distdl.nn.embedding.table import Norm, Table
from distdl.parameters.transport import zero_of

__all__ = ["DistributedEmbeddingBag"]


@with_partitions_first
class DistributedEmbeddingBag(PartitionsFirst, Table):
    """Looks up bags of rows of a table, and reduces each bag to one row: ``torch.nn.EmbeddingBag``.

    Args:
        P_x: the partition of the bags: ``[bags, 1]`` for an input of 2 dimensions, ``[bags]`` for 1 dimension with
            offsets. Bags are not split.
        num_embeddings, embedding_dim, max_norm, norm_type, mode, sparse: as in ``torch.nn.EmbeddingBag``.
        scale_grad_by_freq: divide gradients by the frequencies in the whole input. On CPUs, torch 2.13 wrongly takes
            frequencies of other rows (https://github.com/pytorch/pytorch/issues/190063).
        include_last_offset, padding_idx, device, dtype: as in ``torch.nn.EmbeddingBag``.

        P_w: the workers that use the table in blocks, as in :class:`DistributedEmbedding`.

    Without P_w every worker of P_x uses the whole table: see :func:`distdl.parameter_layout`. With P_w the rows travel
    to the workers of P_x, which reduce their bags.

    Shape:
        Indices (bags, size), int64 or int32, in blocks of any sizes over P_x; or the concatenated indices of this
        worker's bags, and offsets from the first index of this worker. ``per_sample_weights`` has the shape of the
        indices. The result is (bags, embedding_dim) in blocks over the same workers.

    Attributes:
        weight: this worker's part of the table (num_embeddings, embedding_dim).

    Raises:
        IndexError: on all ranks, if an index of any worker is out of range, or its offsets do not match its indices.
        ValueError: on all ranks, if P_x splits bags, offsets or weights are not as described, options contradict each
            other, or sparse=True and several workers share a block of the table: their summed gradients are dense.
        RuntimeError: on all ranks, if the indices are of another dtype, or there are no offsets and bags of size 0.
    """

    num_embeddings: Natural
    embedding_dim: Natural
    max_norm: Norm | None = None
    norm_type: Norm = 2.0
    scale_grad_by_freq: Flag = False
    mode: Annotated[str, choice("sum", "mean", "max")] = "mean"
    sparse: Flag = False
    include_last_offset: Flag = False
    padding_idx: Integer | None = None
    device: Device = None
    dtype: Dtype = None
    _: KW_ONLY
    P_w: FurtherPartition = option(default=None)
    tensors = ("input", "offsets", "per_sample_weights")
    optional = ("offsets", "per_sample_weights")

    def check_options(self) -> None:
        super().check_options()
        name, shape = "DistributedEmbeddingBag", self.grid.shape
        if self.mode == "max" and (self.scale_grad_by_freq or self.sparse):
            raise ValueError(f"{name}: mode='max' takes neither scale_grad_by_freq nor sparse, as in torch.nn")
        fits = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
        self.check_shape(fits, "it must be [bags, 1], or [bags] with offsets")

    def local_error(self, inputs: Sequence[object]) -> str:
        problem, offsets = super().local_error(inputs), inputs[1] if len(inputs) > 1 else None
        x = inputs[0] if inputs else None
        if problem or not isinstance(offsets, torch.Tensor) or not isinstance(x, torch.Tensor):
            return problem
        if offsets.dtype not in (torch.int64, torch.int32) or offsets.dim() != 1 or offsets.is_sparse:
            return ""  # set_up raises
        bounds = [0, *offsets.tolist(), x.numel()]
        begins = len(bounds) == 2 or bounds[1] == 0
        ends = not self.include_last_offset or bounds[-2] == bounds[-1]
        if begins and ends and bounds == sorted(bounds) and (len(offsets) > 0 or not self.include_last_offset):
            return ""
        return f"has offsets {offsets.tolist()} into {x.numel()} indices"

    def set_up(self) -> None:
        """Check on all ranks that offsets and weights match the indices."""
        super().set_up()
        inputs, offsets, weights = (self.structure(self.grid, tensor) for tensor in range(3))
        name, expected_offsets = "DistributedEmbeddingBag", len(inputs) if self.grid.dim == 1 else 0
        if self.grid.dim == 2 and self.blocks(self.grid)[1] == [0]:  # workers without bags would not raise otherwise
            raise RuntimeError(f"{name}: the workers of P_x have indices {inputs}; bags of size 0 need offsets")
        if len(offsets) != expected_offsets or any(len(shape) != 1 for shape, _ in offsets):
            raise ValueError(
                f"{name}: the workers of P_x have offsets {offsets}; with P_x of shape {list(self.grid.shape)} "
                f"{'each needs offsets of 1 dimension' if expected_offsets else 'there must be none'}"
            )
        if any(dtype != of_input for (_, dtype), (_, of_input) in zip(offsets, inputs, strict=False)):
            raise ValueError(f"{name}: the offsets {offsets} must be of the dtype of the indices {inputs}")
        if weights and self.mode != "sum":
            raise ValueError(f"{name}: mode={self.mode!r} takes no per_sample_weights; they are for 'sum'")
        expected = [(shape, self.weight.dtype) for shape, _ in inputs]
        if weights and weights != expected:
            raise ValueError(f"{name}: the workers of P_x have per_sample_weights {weights}; they must be {expected}")

    def compute(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        table, indices, padding = self._rows(input)
        if not self.grid.active:
            return table.flatten()[:0]
        bags = len(input) if offsets is None else len(offsets) - self.include_last_offset
        if bags == 0:
            empty = table.flatten()[:0].reshape(0, self.embedding_dim)
            return empty if per_sample_weights is None else empty + zero_of(per_sample_weights)
        return F.embedding_bag(
            indices,
            table,
            offsets,
            mode=self.mode,
            sparse=self.sparse and self.P_w is None,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset and offsets is not None,
            padding_idx=padding,
        )

    def _rows(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """A table with the rows of this rank's indices, the indices in it, and the index of the padding."""
        if self.P_w is None:
            table = self.table(input) if self.grid.active else self.parameters_in_use()[0]
            return table, input, self.padding_idx
        result = self.rows_of(input)
        if not self.grid.active:
            return result, input, None
        rows, count = result.reshape(input.numel(), self.embedding_dim), input.numel()
        indices = torch.arange(count, dtype=input.dtype, device=input.device).view(input.shape)
        if self.padding_idx is None and count > 0:
            return rows, indices, None
        rows = torch.cat([rows, rows.new_zeros(1, self.embedding_dim)])
        left_out = torch.zeros_like(input, dtype=torch.bool) if self.padding_idx is None else input == self.padding_idx
        return rows, indices.masked_fill(left_out, count), count
