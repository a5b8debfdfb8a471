"""The chunks in which a file is written and read, and the exchange between chunks and the ranks' blocks.

A chunk is a range of bytes that one rank writes or reads in one call. Between two ranks, its parts travel as one
message. No byte is written twice, and ranks never write into the same page.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from distdl.checkpoint.stored import StoredTensor
from distdl.partitions.boxes import Box, box_shape, box_size, boxes_between, common_box, slices_within
from distdl.partitions.grid import Grid

CHUNK = 4 << 20  # bytes; large enough for the disk, and small beside what a rank may need for a checkpoint
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def chunks_of(nbytes: int) -> list[tuple[int, int]]:
    """(start, stop) of the chunks of a file that save() writes, the same for any number of ranks."""
    return [(start, min(start + CHUNK, nbytes)) for start in range(0, nbytes, CHUNK)]


def chunks_of_tensors(tensors: Sequence[tuple[int, StoredTensor]]) -> list[tuple[int, int]]:
    """The chunks of a file in which tensors may begin anywhere: each chunk lies within a tensor."""
    return [
        (start, min(start + CHUNK, offset + tensor.nbytes))
        for offset, tensor in tensors
        for start in range(offset, offset + tensor.nbytes, CHUNK)
    ]


@dataclass(frozen=True)
class ChunkPart:
    """A box of a tensor, contiguous in the file, with the place of its first byte in a chunk."""

    tensor: StoredTensor
    box: Box
    at: int


Pieces: TypeAlias = list[tuple[ChunkPart, Box]]  # boxes in parts of a chunk, which make up a message
PlaceOf: TypeAlias = Callable[[ChunkPart, Box], torch.Tensor]  # the memory of a piece


class ChunkExchange:
    """The exchange between the chunks of a file and the blocks of its tensors. Constructing is collective.

    Args:
        operation: its name, for the watchdog and for statistics.
        tensors: (offset, tensor) in the order of the file.
        chunks: (start, stop), in order.
        blocks: this rank's blocks of the tensors, by name.

    Attributes:
        local_chunks: numbers of the chunks that this rank writes or reads.
        rounds: the largest number of chunks of a rank. All ranks go through the rounds together.
    """

    def __init__(
        self,
        operation: str,
        all_ranks: Grid,
        tensors: Sequence[tuple[int, StoredTensor]],
        chunks: Sequence[tuple[int, int]],
        blocks: Mapping[str, torch.Tensor],
    ) -> None:
        self._all_ranks, self._tensors, self._blocks = all_ranks, tensors, blocks
        self._offsets = [offset for offset, _ in tensors]
        self._messages = all_ranks.byte_messages(operation)
        self.chunks = chunks
        largest = max((stop - start for start, stop in chunks), default=0)
        self._memory = torch.empty(largest, dtype=torch.uint8, device="cpu")
        self._parts_of: dict[int, list[ChunkPart]] = {}  # of this round's chunks
        self._chunks_of: dict[int, list[int]] = {rank: [] for rank in all_ranks.ranks}
        for number in range(len(chunks)):
            io_rank = self._io_rank(number)
            if io_rank is not None:
                self._chunks_of[io_rank].append(number)
        self.local_chunks = self._chunks_of[all_ranks.me]
        self.rounds = max(map(len, self._chunks_of.values()))

    def _io_rank(self, number: int) -> int | None:
        """The rank that writes or reads a chunk: it has the element at a place in the chunk.

        The places in successive chunks are spread evenly, so that ranks get chunks in proportion to their shares.
        """
        start, stop = self.chunks[number]
        at = start + int((stop - start) * (number * _GOLDEN_RATIO % 1.0))
        index = bisect.bisect_right(self._offsets, at) - 1
        offset, tensor = self._tensors[index]
        (place,) = boxes_between(tensor.shape_of_boxes, *(((at - offset) // tensor.dtype.itemsize + i) for i in (0, 1)))
        rank_with_place = next((rank for rank, box in tensor.sources if common_box(box, place) is not None), None)
        if rank_with_place is None and any(part.tensor.copies for part in self._parts(number)):
            return self._all_ranks.ranks[number % self._all_ranks.size]
        return rank_with_place

    def _parts(self, number: int) -> list[ChunkPart]:
        if number not in self._parts_of:
            self._parts_of[number] = list(self._find_parts(number))
        return self._parts_of[number]

    def _find_parts(self, number: int) -> Iterator[ChunkPart]:
        start, stop = self.chunks[number]
        for index in range(max(0, bisect.bisect_right(self._offsets, start) - 1), len(self._tensors)):
            offset, tensor = self._tensors[index]
            if offset >= stop:
                return
            size = tensor.dtype.itemsize
            low, high = max(start, offset) - offset, min(stop, offset + tensor.nbytes) - offset
            for box in boxes_between(tensor.shape_of_boxes, low // size, high // size):
                yield ChunkPart(tensor, box, offset + low - start)
                low += box_size(box) * size

    def _pieces(self, number: int, rank: int, copies: bool) -> Pieces:
        """The parts of a chunk that a rank holds: all, or without ``copies`` only those that it writes."""
        pieces = []
        for part in self._parts(number):
            box = part.tensor.box_on(rank) if copies or part.tensor.is_source(rank) else None
            common = None if box is None else common_box(box, part.box)
            if common is not None:
                pieces.append((part, common))
        return pieces

    def _block(self, part: ChunkPart, box: Box) -> torch.Tensor:
        local_box = part.tensor.box_on(self._all_ranks.me)
        assert local_box is not None
        return self._blocks[part.tensor.name].view(box_shape(local_box))[slices_within(box, local_box)]

    def gather(self, turn: int) -> tuple[int, torch.Tensor] | None:
        """Collect this rank's chunk of a round, and return its number and bytes. Collective.

        The bytes are memory of a block, or are overwritten in the next round.
        """
        me, all_ranks = self._all_ranks.me, self._all_ranks.ranks
        self._parts_of.clear()
        has_chunk = turn < len(self.local_chunks)
        chunk = self.chunk_memory(self.local_chunks[turn]) if has_chunk else self._memory[:0]
        arriving = []
        for rank in all_ranks if has_chunk else ():
            pieces = self._pieces(self.local_chunks[turn], rank, copies=False)
            if rank != me:
                if pieces:
                    arriving.append((self._messages.receive(rank, _nbytes(pieces)), pieces))
            elif chunk.data_ptr() == self._memory.data_ptr():  # else it is memory of the block
                for part, box in pieces:
                    _chunk_view(chunk, part, box).copy_(self._block(part, box))
        for rank in all_ranks:
            if rank != me and turn < len(self._chunks_of[rank]):
                pieces = self._pieces(self._chunks_of[rank][turn], me, copies=False)
                if pieces:
                    self._messages.send(rank, _packed(pieces, self._block))
        self._deliver(arriving, functools.partial(_chunk_view, chunk))
        return (self.local_chunks[turn], chunk) if has_chunk else None

    def chunk_memory(self, number: int) -> torch.Tensor:
        """Memory for a chunk: a view of a block that has the same bytes, or else a buffer."""
        start, stop = self.chunks[number]
        pieces = self._pieces(number, self._all_ranks.me, copies=False)
        if len(pieces) == 1 and _nbytes(pieces) == stop - start:
            block = self._block(*pieces[0])
            has_same_bytes = block.is_contiguous() and block.dtype == pieces[0][0].tensor.dtype
            if has_same_bytes and block.device.type == "cpu":
                return block.view(-1).view(torch.uint8)
        return self._memory[: stop - start]

    def scatter(self, turn: int, chunk: torch.Tensor | None) -> None:
        """Send this rank's chunk of a round to all ranks that have blocks in it. Collective."""
        me, all_ranks = self._all_ranks.me, self._all_ranks.ranks
        arriving = []
        for rank in all_ranks:
            if rank != me and turn < len(self._chunks_of[rank]):
                pieces = self._pieces(self._chunks_of[rank][turn], me, copies=True)
                if pieces:
                    arriving.append((self._messages.receive(rank, _nbytes(pieces)), pieces))
        if chunk is not None:
            for rank in all_ranks:
                pieces = self._pieces(self.local_chunks[turn], rank, copies=True)
                if rank != me:
                    if pieces:
                        self._messages.send(rank, _packed(pieces, functools.partial(_chunk_view, chunk)))
                elif chunk.data_ptr() == self._memory.data_ptr():  # else it is memory of the block
                    for part, box in pieces:
                        self._block(part, box).copy_(_chunk_view(chunk, part, box))
        self._deliver(arriving, self._block)
        self._parts_of.clear()

    def _deliver(self, arriving: Sequence[tuple[torch.Tensor, Pieces]], place: PlaceOf) -> None:
        """Wait for the messages of a round, and copy what has arrived to its places."""
        self._messages.wait()
        for message, pieces in arriving:
            for (part, box), arrived in zip(pieces, _message_views(message, pieces), strict=True):
                place(part, box).copy_(arrived)


def _packed(pieces: Pieces, place: PlaceOf) -> torch.Tensor:
    """A message of the bytes of all pieces."""
    message = torch.empty(_nbytes(pieces), dtype=torch.uint8, device="cpu")
    for (part, box), packed in zip(pieces, _message_views(message, pieces), strict=True):
        packed.copy_(place(part, box))
    return message


def _nbytes(pieces: Pieces) -> int:
    return sum(box_size(box) * part.tensor.dtype.itemsize for part, box in pieces)


def _as_box(memory: torch.Tensor, dtype: torch.dtype, box: Box) -> torch.Tensor:
    """Bytes as the elements of a box, also in 0 dimensions."""
    return memory.view(dtype).view(box_shape(box))


def _chunk_view(chunk: torch.Tensor, part: ChunkPart, box: Box) -> torch.Tensor:
    size = box_size(part.box) * part.tensor.dtype.itemsize
    return _as_box(chunk[part.at : part.at + size], part.tensor.dtype, part.box)[slices_within(box, part.box)]


def _message_views(message: torch.Tensor, pieces: Pieces) -> Iterator[torch.Tensor]:
    """Views of the boxes in a message. Larger elements come first, so that all are aligned."""
    at = 0
    for part, box in pieces:
        size = box_size(box) * part.tensor.dtype.itemsize
        yield _as_box(message[at : at + size], part.tensor.dtype, box)
        at += size
