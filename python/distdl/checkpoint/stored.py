"""Tensors of a checkpoint: where they stand in the file, and which rank has which box of them."""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from distdl.collective.grid import Grid
from distdl.parameters.layout import Interval, Layout

Box: TypeAlias = tuple[Interval, ...]
Held: TypeAlias = tuple[int, Box]  # by which rank

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
class Stored:
    """A whole tensor of a file.

    Attributes:
        name, dtype, shape: as in the file.
        first: which rank has which box of it, each element once.
        held: which rank has which box of it, with all copies.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: tuple[Held, ...] = ()
    held: tuple[Held, ...] = ()

    @property
    def nbytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def box_on(self, rank: int) -> Box | None:
        """The box of it that a rank has."""
        return self._boxes.get(rank)

    def counts_on(self, rank: int) -> bool:
        """Whether a rank has the first copy of its box."""
        return rank in self._ranks_of_first

    @functools.cached_property
    def _ranks_of_first(self) -> set[int]:
        return {rank for rank, _ in self.first}

    @functools.cached_property
    def _boxes(self) -> dict[int, Box]:
        return dict(self.held)


def in_blocks(name: str, dtype: torch.dtype, layout: Layout) -> Stored:
    """A tensor that lives in blocks. A dtype that the format lacks is stored as pairs of real numbers."""
    grid, first = layout.grid, set(layout.storage[0].ranks)
    boxes = ((rank, layout.owned(grid.index(worker))) for worker, rank in enumerate(grid.ranks))
    held = tuple((rank, tuple(box)) for rank, box in boxes if box is not None)
    return _in_real_numbers(name, dtype, layout.shape, tuple(one for one in held if one[0] in first), held)


def whole_on(name: str, dtype: torch.dtype, shape: Sequence[int], source: int, everyone: Grid) -> Stored:
    """A tensor that every rank has, and that is written as one of them has it."""
    box = tuple((0, n) for n in shape)
    return _in_real_numbers(name, dtype, tuple(shape), ((source, box),), tuple((rank, box) for rank in everyone.ranks))


def _in_real_numbers(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], first: tuple[Held, ...], held: tuple[Held, ...]
) -> Stored:
    if dtype is not torch.complex128:
        if dtype not in NAMES:
            raise TypeError(f"{name} is of dtype {dtype}, which safetensors files do not have")
        return Stored(name, dtype, shape, first, held)
    pairs = ((0, 2),)
    more = [tuple((rank, box + pairs) for rank, box in some) for some in (first, held)]
    return Stored(name, torch.float64, (*shape, 2), more[0], more[1])


def check_strided(name: str, tensor: torch.Tensor) -> None:
    """Raise TypeError for a tensor of which no box can be read."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        what = "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
        raise TypeError(f"{name} is {what}; files have dense tensors with values")


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a view of the numbers that are stored of it."""
    if tensor.dtype is not torch.complex128:
        return tensor.detach()
    return torch.view_as_real(tensor.detach().resolve_conj())


def placed(tensors: Iterable[Stored]) -> list[tuple[int, Stored]]:
    """The tensors with their offsets, in the order of the file, in which each is aligned to its elements."""
    offset, found = 0, []
    for one in sorted(tensors, key=lambda one: -one.dtype.itemsize):
        found.append((offset, one))
        offset += one.nbytes
    return found


def header_sum(entries: Iterable[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]) -> str:
    """A checksum of what a header says: name, dtype and shape of each tensor, and the metadata."""
    said = [sorted([name, dtype, list(shape)] for name, dtype, shape in entries), sorted(metadata.items())]
    return f"{zlib.crc32(json.dumps(said).encode()):08x}"


def header_of(tensors: Iterable[tuple[int, Stored]], metadata: dict[str, str]) -> bytes:
    """The first bytes of a safetensors file, up to its first tensor.

    Source: https://huggingface.co/docs/safetensors, "Format".
    """
    header: dict[str, object] = {"__metadata__": metadata}
    for offset, one in tensors:
        place = [offset, offset + one.nbytes]
        header[one.name] = {"dtype": NAMES[one.dtype], "shape": list(one.shape), "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def boxes_between(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The elements from one place to another in row-major order, as boxes in the same order."""
    if start >= stop:
        return
    if len(shape) <= 1:
        yield ((start, stop),) if shape else ()
        return
    row = math.prod(shape[1:])
    (first, before), (last, after) = divmod(start, row), divmod(stop, row)
    if before:
        end = after if first == last else row
        yield from (((first, first + 1), *box) for box in boxes_between(shape[1:], before, end))
        if first == last:
            return
        first += 1
    if first < last:
        yield ((first, last), *((0, n) for n in shape[1:]))
    yield from (((last, last + 1), *box) for box in boxes_between(shape[1:], 0, after))


def overlap(a: Box, b: Box) -> Box | None:
    """The common elements of two boxes; None if there are none."""
    common = []
    for (start, stop), (first, last) in zip(a, b, strict=True):
        start, stop = first if first > start else start, last if last < stop else stop  # max() and min() take long
        if start >= stop:
            return None
        common.append((start, stop))
    return tuple(common)
