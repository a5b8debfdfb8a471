"""Reading the tensors of a file into the blocks of all ranks."""

from __future__ import annotations

import os

import torch

from distdl.checkpoint.chunks import ChunkExchange, chunks_of, chunks_of_tensors
from distdl.checkpoint.file import open_to_read, sum_of_words
from distdl.checkpoint.header import Header
from distdl.checkpoint.load_plan import LoadPlan
from distdl.partitions.comparison import agreed
from distdl.partitions.grid import Grid
from distdl.progress_bars import with_progress

_PIECE = 1 << 18  # bytes; a piece is still in a near cache when its checksum is computed


def read_values(header: Header, plan: LoadPlan, all_ranks: Grid) -> None:
    """Read the file in chunks into the blocks of all ranks. Collective."""
    tensors = [(offset, plan.tensors.get(tensor.name, tensor)) for offset, tensor in header.tensors]
    size = sum(tensor.nbytes for _, tensor in tensors)
    chunks = chunks_of(size) if header.checksums else chunks_of_tensors(tensors)
    descriptor, problem = -1, None
    with agreed("load", all_ranks, lambda: ""):
        descriptor = open_to_read(header.path)
    try:
        exchange = ChunkExchange("load", all_ranks, tensors, chunks, plan.blocks)
        is_first = all_ranks.me == all_ranks.ranks[0]
        for turn in with_progress("load", range(exchange.rounds), is_first):
            chunk = None
            if turn < len(exchange.local_chunks):
                number = exchange.local_chunks[turn]
                start, _ = chunks[number]
                chunk = exchange.chunk_memory(number)
                expected = header.checksums[number] if header.checksums else None
                problem = _read_chunk(chunk, descriptor, header.start + start, expected) or problem
            exchange.scatter(turn, chunk)
    finally:
        os.close(descriptor)
    with agreed("load", all_ranks, lambda: ""):
        if problem is not None:
            raise ValueError(f"load: {header.path} is damaged, or changed while it was read: {problem}")


def _read_chunk(chunk: torch.Tensor, descriptor: int, at: int, expected: int | None) -> str | None:
    """Read a chunk. Returns the problem, or None."""
    data, total = chunk.numpy(), 0
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        problem = _read_piece(piece.data, descriptor, at + start)
        if problem is not None:
            return problem
        total += 0 if expected is None else sum_of_words(piece)
    if expected is not None and total % 2**64 != expected:
        return f"the {len(chunk)} bytes at {at} differ from the bytes that were written"
    return None


def _read_piece(memory: memoryview, descriptor: int, at: int) -> str | None:
    while memory:
        try:
            count = os.preadv(descriptor, [memory], at)
        except OSError as error:
            return str(error.strerror)
        if count == 0:
            return f"it ends at byte {at}"
        memory, at = memory[count:], at + count
    return None
