"""The header of a file, which the first rank reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from distdl.checkpoint.chunks import chunks_of
from distdl.checkpoint.file import open_to_read
from distdl.checkpoint.json_values import JSON
from distdl.checkpoint.metadata import check_metadata, check_optimizer, checksums_in
from distdl.checkpoint.model_state import PREFIX
from distdl.checkpoint.saving import CHECKSUMS, HEADER_SUM, MARK
from distdl.checkpoint.stored import DTYPES, StoredTensor, header_sum
from distdl.partitions.comparison import agreed
from distdl.partitions.grid import Grid

_OURS = {MARK, CHECKSUMS, HEADER_SUM}  # in the metadata of every file that save() wrote


@dataclass(frozen=True)
class Header:
    """The header of a file, the same on all ranks."""

    path: Path
    start: int  # of the first tensor
    tensors: list[tuple[int, StoredTensor]]  # with their offsets, in order
    metadata: Mapping[str, JSON]
    checksums: list[int]


def read_header(path: Path, all_ranks: Grid) -> Header:
    """The header, which the first rank reads. Collective."""
    text = ""
    with agreed("load", all_ranks, lambda: ""):
        if all_ranks.me == all_ranks.ranks[0]:
            text = json.dumps(_raw_header(path))
    start, entries, metadata = json.loads(all_ranks.gather(text.encode())[0])
    with agreed("load", all_ranks, lambda: ""):
        return _parse_header(path, start, entries, metadata)


def _parse_header(path: Path, start: int, entries: list[list[Any]], metadata: Mapping[str, str]) -> Header:
    """Raises ValueError for a file with an invalid header of :func:`distdl.save`."""
    offset, tensors = 0, []
    for name, dtype, shape in entries:
        tensors.append((offset, StoredTensor(name, DTYPES[dtype], tuple(shape))))
        offset += tensors[-1][1].nbytes
    if not _OURS & metadata.keys():
        return Header(path, start, tensors, {}, [])
    try:
        if not metadata.keys() >= _OURS:
            raise ValueError(f"it has to have {sorted(_OURS)}, and has {sorted(_OURS & metadata.keys())}")
        sums = checksums_in(metadata[CHECKSUMS], len(chunks_of(offset)))
        parsed = check_metadata(json.loads(metadata[MARK]))
        if "optimizer" in parsed:
            check_optimizer(parsed["optimizer"], [tensor for _, tensor in tensors], PREFIX)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"load: {path} is damaged: its header is not a header of a checkpoint: {error}") from None
    return Header(path, start, tensors, parsed, sums)


def _raw_header(path: Path) -> list[object]:
    """The offset of the first tensor, (name, dtype, shape) of all tensors, and the metadata."""
    descriptor = open_to_read(path)
    try:
        first = os.pread(descriptor, 8, 0)
    finally:
        os.close(descriptor)
    try:
        with safe_open(path, framework="pt") as file:
            slices = [(name, file.get_slice(name)) for name in file.offset_keys()]
            entries = [(name, view.get_dtype(), view.get_shape()) for name, view in slices]
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"load: {path} is not a safetensors file, or it is damaged: {error}") from None
    unknown = next((dtype for _, dtype, _ in entries if dtype not in DTYPES), None)
    if unknown is not None:
        raise ValueError(f"load: {path} has a tensor of dtype {unknown}, which torch does not have")
    unsummed = {key: text for key, text in metadata.items() if key != HEADER_SUM}
    if _OURS & metadata.keys() and metadata.get(HEADER_SUM) != header_sum(entries, unsummed):
        raise ValueError(f"load: {path} is damaged: its header has changed since it was written")
    return [8 + int.from_bytes(first, "little"), entries, metadata]
