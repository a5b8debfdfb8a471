"""Tensors of a checkpoint: their places in the file, and the boxes that ranks have."""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from distdl.parameters.layout import Layout
from distdl.partitions.boxes import Box
from distdl.partitions.grid import Grid

RankBox: TypeAlias = tuple[int, Box]  # a box, and the rank that has it

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

ALIGNMENT = 4096  # of the first tensor in the file: a page


@dataclass(frozen=True)
class StoredTensor:
    """A whole tensor of a file.

    Attributes:
        name, dtype, shape: as in the file.
        sources: the boxes of the ranks that write the tensor: each element once.
        copies: the boxes of all ranks that hold some of it.
        cut_shape: the shape in which boxes lie, if some of its dimensions are a single dimension of the file.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    sources: tuple[RankBox, ...] = ()
    copies: tuple[RankBox, ...] = ()
    cut_shape: tuple[int, ...] | None = None

    @property
    def shape_of_boxes(self) -> tuple[int, ...]:
        return self.shape if self.cut_shape is None else self.cut_shape

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def box_on(self, rank: int) -> Box | None:
        return self._boxes.get(rank)

    def is_source(self, rank: int) -> bool:
        return rank in self._source_ranks

    @functools.cached_property
    def _source_ranks(self) -> set[int]:
        return {rank for rank, _ in self.sources}

    @functools.cached_property
    def _boxes(self) -> dict[int, Box]:
        return dict(self.copies)


def stored_in_blocks(name: str, dtype: torch.dtype, layout: Layout) -> StoredTensor:
    """A tensor in blocks. complex128, which the format lacks, becomes pairs of real numbers."""
    grid, source_ranks = layout.grid, set(layout.storage[0].ranks)
    boxes = ((rank, layout.owned(grid.index(worker))) for worker, rank in enumerate(grid.ranks))
    copies = tuple((rank, tuple(box)) for rank, box in boxes if box is not None)
    sources = tuple(copy for copy in copies if copy[0] in source_ranks)
    stored = _in_real_numbers(name, dtype, layout.shape, sources, copies)
    if layout.merged is None:
        return stored
    return replace(stored, shape=layout.merge(stored.shape), cut_shape=stored.shape)


def stored_whole(name: str, dtype: torch.dtype, shape: Sequence[int], source: int, all_ranks: Grid) -> StoredTensor:
    """A tensor that every rank has whole, and rank ``source`` writes."""
    box = tuple((0, n) for n in shape)
    return _in_real_numbers(name, dtype, tuple(shape), ((source, box),), tuple((rank, box) for rank in all_ranks.ranks))


def _in_real_numbers(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], sources: tuple[RankBox, ...], copies: tuple[RankBox, ...]
) -> StoredTensor:
    if dtype is not torch.complex128:
        if dtype not in NAMES:
            raise TypeError(f"{name} is of dtype {dtype}, which safetensors files do not have")
        return StoredTensor(name, dtype, shape, sources, copies)
    pairs = ((0, 2),)
    paired = [tuple((rank, box + pairs) for rank, box in boxes) for boxes in (sources, copies)]
    return StoredTensor(name, torch.float64, (*shape, 2), paired[0], paired[1])


def check_strided(name: str, tensor: torch.Tensor) -> None:
    """Raise TypeError for a tensor that is not dense, or has no values."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        kind = "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
        raise TypeError(f"{name} is {kind}; files have dense tensors with values")


def stored_view(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the numbers that a file stores for a tensor."""
    if tensor.dtype is not torch.complex128:
        return tensor.detach()
    return torch.view_as_real(tensor.detach().resolve_conj())


def with_offsets(tensors: Iterable[StoredTensor]) -> list[tuple[int, StoredTensor]]:
    """(offset, tensor) in the order of the file, which aligns tensors to their element sizes."""
    offset, result = 0, []
    for tensor in sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize):
        result.append((offset, tensor))
        offset += tensor.nbytes
    return result


def header_sum(entries: Iterable[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]) -> str:
    """A checksum of a header: name, dtype and shape of each tensor, and the metadata."""
    content = [sorted([name, dtype, list(shape)] for name, dtype, shape in entries), sorted(metadata.items())]
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def header_bytes(tensors: Iterable[tuple[int, StoredTensor]], metadata: dict[str, str]) -> bytes:
    """The first bytes of a safetensors file, up to its first tensor.

    Source: https://huggingface.co/docs/safetensors, "Format".
    """
    header: dict[str, object] = {"__metadata__": metadata}
    for offset, tensor in tensors:
        place = [offset, offset + tensor.nbytes]
        header[tensor.name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
