"""The chunks in which a file is written and read, and the exchange between chunks and the ranks' blocks.

A chunk is a range of bytes, which one rank writes or reads in one call. The parts of it that live on other ranks travel
as one message between two ranks. No byte is written twice, and ranks never write into the same page.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from mpi4py import MPI

from distdl import _core
from distdl.checkpoint.stored import Box, Stored, boxes_between, overlap
from distdl.collective.grid import Grid

CHUNK = 4 << 20  # bytes; large enough for the disk, and small beside what a rank may need for a checkpoint
_SENT_AT_ONCE = 4  # messages
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def chunks_of(nbytes: int) -> list[tuple[int, int]]:
    """(start, stop) of the chunks of a file of our own, on a grid that does not depend on the number of ranks."""
    return [(start, min(start + CHUNK, nbytes)) for start in range(0, nbytes, CHUNK)]


def chunks_of_each(tensors: Sequence[tuple[int, Stored]]) -> list[tuple[int, int]]:
    """The chunks of a file in which tensors may begin anywhere: each within one tensor."""
    return [
        (start, min(start + CHUNK, offset + one.nbytes))
        for offset, one in tensors
        for start in range(offset, offset + one.nbytes, CHUNK)
    ]


@dataclass(frozen=True)
class Part:
    """A box of a tensor that stands in a chunk.

    Attributes:
        tensor: the tensor.
        box: of the tensor; contiguous in the file.
        at: its first byte in the chunk.
    """

    tensor: Stored
    box: Box
    at: int


class ChunkExchange:
    """The exchange between the chunks of a file and the blocks of its tensors.

    Args:
        everyone: the ranks that take part.
        tensors: the tensors of the file with their offsets, in its order.
        chunks: their (start, stop), in order.
        blocks: what this rank has of the tensors, by name.

    Attributes:
        own: the chunks that this rank writes or reads, by number.
        rounds: how many chunks the rank with the most of them has. All ranks go through the rounds together.
    """

    def __init__(
        self,
        everyone: Grid,
        tensors: Sequence[tuple[int, Stored]],
        chunks: Sequence[tuple[int, int]],
        blocks: Mapping[str, torch.Tensor],
    ) -> None:
        self._everyone, self._tensors, self._blocks = everyone, tensors, blocks
        self._offsets = [offset for offset, _ in tensors]
        self.chunks = chunks
        largest = max((stop - start for start, stop in chunks), default=0)
        self._memory = torch.empty(largest, dtype=torch.uint8, device="cpu")
        self._parts_of: dict[int, list[Part]] = {}  # of this round's chunks
        self._number = {rank: number for number, rank in enumerate(everyone.ranks)}
        self._chunks_of: dict[int, list[int]] = {rank: [] for rank in everyone.ranks}
        for number in range(len(chunks)):
            keeper = self._keeper(number)
            if keeper is not None:
                self._chunks_of[keeper].append(number)
        self.own = self._chunks_of[everyone.me]
        self.rounds = max(map(len, self._chunks_of.values()))

    def __enter__(self) -> Self:
        self._comm = self._everyone.host_exchange().view([]).Dup()
        return self

    def __exit__(self, *error: object) -> None:
        self._comm.Free()

    def _keeper(self, number: int) -> int | None:
        """The rank that writes or reads a chunk: one that has much of it, so that little travels.

        It is the rank that has the element at a place in the chunk. The places of successive chunks are spread evenly,
        so that ranks with equal shares of each chunk keep equally many of them.
        """
        start, stop = self.chunks[number]
        at = start + int((stop - start) * (number * _GOLDEN_RATIO % 1.0))
        index = bisect.bisect_right(self._offsets, at) - 1
        offset, tensor = self._tensors[index]
        (place,) = boxes_between(tensor.shape, *(((at - offset) // tensor.dtype.itemsize + i) for i in (0, 1)))
        keeper = next((rank for rank, box in tensor.first if overlap(box, place) is not None), None)
        if keeper is None and any(part.tensor.held for part in self._parts(number)):
            return self._everyone.ranks[number % self._everyone.size]
        return keeper

    def _parts(self, number: int) -> list[Part]:
        if number not in self._parts_of:
            self._parts_of[number] = list(self._found_parts(number))
        return self._parts_of[number]

    def _found_parts(self, number: int) -> Iterator[Part]:
        start, stop = self.chunks[number]
        for index in range(max(0, bisect.bisect_right(self._offsets, start) - 1), len(self._tensors)):
            offset, tensor = self._tensors[index]
            if offset >= stop:
                return
            size = tensor.dtype.itemsize
            low, high = max(start, offset) - offset, min(stop, offset + tensor.nbytes) - offset
            for box in boxes_between(tensor.shape, low // size, high // size):
                yield Part(tensor, box, offset + low - start)
                low += _volume(box) * size

    def _pieces(self, number: int, rank: int, copies: bool) -> list[tuple[Part, Box]]:
        """The parts of a chunk that a rank holds: of every tensor, or only where it has the first copy."""
        found = []
        for part in self._parts(number):
            box = part.tensor.box_on(rank) if copies or part.tensor.counts_on(rank) else None
            common = None if box is None else overlap(box, part.box)
            if common is not None:
                found.append((part, common))
        return found

    def _block(self, part: Part, box: Box) -> torch.Tensor:
        own = part.tensor.box_on(self._everyone.me)
        assert own is not None
        return self._blocks[part.tensor.name][_within(box, own)]

    def gathered(self, turn: int) -> tuple[int, torch.Tensor] | None:
        """This rank's chunk of a round with its number, from all ranks that have parts of it. Collective.

        The memory of the chunk is that of the blocks, or is used again in the next round.
        """
        me, everyone = self._everyone.me, self._everyone.ranks
        self._parts_of.clear()
        result, arriving = None, []
        if turn < len(self.own):
            result = self.own[turn], self.memory_of(self.own[turn])
            for rank in everyone:
                pieces = self._pieces(self.own[turn], rank, copies=False)
                if rank == me:
                    if result[1].data_ptr() == self._memory.data_ptr():  # otherwise it is the memory of the block
                        for part, box in pieces:
                            _in_chunk(result[1], part, box).copy_(self._block(part, box))
                elif pieces:
                    message = torch.empty(_nbytes(pieces), dtype=torch.uint8, device="cpu")
                    arriving.append((self._comm.Irecv(message.numpy(), self._number[rank]), message, pieces))
        sending = _Sending(self._comm)
        for rank in everyone:
            if rank != me and turn < len(self._chunks_of[rank]):
                pieces = self._pieces(self._chunks_of[rank][turn], me, copies=False)
                sending.send(self._number[rank], pieces, self._block)
        with _core.Waiting("save"):
            for request, message, pieces in arriving:
                request.Wait()
                assert result is not None
                for (part, box), arrived in zip(pieces, _parted(message, pieces), strict=True):
                    _in_chunk(result[1], part, box).copy_(arrived)
            sending.wait()
        return result

    def memory_of(self, number: int) -> torch.Tensor:
        """Memory for a chunk: where it stands in one block as it is, that of the block."""
        start, stop = self.chunks[number]
        pieces = self._pieces(number, self._everyone.me, copies=False)
        if len(pieces) == 1 and _nbytes(pieces) == stop - start:
            block = self._block(*pieces[0])
            as_it_is = block.is_contiguous() and block.dtype == pieces[0][0].tensor.dtype
            if as_it_is and block.device.type == "cpu":
                return block.view(-1).view(torch.uint8)
        return self._memory[: stop - start]

    def scatter(self, turn: int, chunk: torch.Tensor | None) -> None:
        """Bring this rank's chunk of a round to all ranks that have blocks in it. Collective."""
        me, everyone = self._everyone.me, self._everyone.ranks
        arriving = []
        for rank in everyone:
            if rank != me and turn < len(self._chunks_of[rank]):
                pieces = self._pieces(self._chunks_of[rank][turn], me, copies=True)
                if pieces:
                    message = torch.empty(_nbytes(pieces), dtype=torch.uint8, device="cpu")
                    arriving.append((self._comm.Irecv(message.numpy(), self._number[rank]), message, pieces))
        sending = _Sending(self._comm)
        if chunk is not None:
            for rank in everyone:
                pieces = self._pieces(self.own[turn], rank, copies=True)
                if rank != me:
                    sending.send(self._number[rank], pieces, lambda part, box: _in_chunk(chunk, part, box))
                elif chunk.data_ptr() == self._memory.data_ptr():  # otherwise it stands in its block already
                    for part, box in pieces:
                        self._block(part, box).copy_(_in_chunk(chunk, part, box))
        self._place(arriving)
        with _core.Waiting("load"):
            sending.wait()
        self._parts_of.clear()

    def _place(self, arriving: list[tuple[MPI.Request, torch.Tensor, list[tuple[Part, Box]]]]) -> None:
        for request, message, pieces in arriving:
            with _core.Waiting("load"):
                request.Wait()
            for (part, box), arrived in zip(pieces, _parted(message, pieces), strict=True):
                self._block(part, box).copy_(arrived)
        arriving.clear()


class _Sending:
    """Messages that are under way, not more than a few at once."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._under_way: list[tuple[MPI.Request, torch.Tensor]] = []

    def send(self, to: int, pieces: list[tuple[Part, Box]], piece: Callable[[Part, Box], torch.Tensor]) -> None:
        if not pieces:
            return
        if len(self._under_way) == _SENT_AT_ONCE:
            self._under_way.pop(0)[0].Wait()
        message = torch.empty(_nbytes(pieces), dtype=torch.uint8, device="cpu")
        for (part, box), place in zip(pieces, _parted(message, pieces), strict=True):
            place.copy_(piece(part, box))
        self._under_way.append((self._comm.Isend(message.numpy(), to), message))

    def wait(self) -> None:
        for request, _ in self._under_way:
            request.Wait()


def _volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _nbytes(pieces: Sequence[tuple[Part, Box]]) -> int:
    return sum(_volume(box) * part.tensor.dtype.itemsize for part, box in pieces)


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, outer, strict=True))


def _shaped(memory: torch.Tensor, dtype: torch.dtype, box: Box) -> torch.Tensor:
    """Bytes as the elements of a box. A tensor without dimensions stays one."""
    return memory.view(dtype).view([stop - start for start, stop in box])


def _in_chunk(chunk: torch.Tensor, part: Part, box: Box) -> torch.Tensor:
    """The place of a box within a part of a chunk."""
    size = _volume(part.box) * part.tensor.dtype.itemsize
    return _shaped(chunk[part.at : part.at + size], part.tensor.dtype, part.box)[_within(box, part.box)]


def _parted(message: torch.Tensor, pieces: Sequence[tuple[Part, Box]]) -> Iterator[torch.Tensor]:
    """The boxes in a message; larger elements come first, so that all are aligned."""
    at = 0
    for part, box in pieces:
        size = _volume(box) * part.tensor.dtype.itemsize
        yield _shaped(message[at : at + size], part.tensor.dtype, box)
        at += size
