"""Writing the blocks of a tensor into an array."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from distdl import _core
from distdl.data.blocks import chunk_extents
from distdl.data.regions import Region, RegionLike
from distdl.partitions.boxes import as_slices, cut
from distdl.partitions.comparison import agreed, gather_or_raise
from distdl.partitions.construction import constructing, constructor
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Box = tuple[slice, ...]


class Assignable(Protocol):
    """An array of NumPy, a memory map, a dataset of h5py or zarr, a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __setitem__(self, key: tuple[slice, ...], value: object, /) -> None: ...


@constructor
def write_block(
    array: Assignable | None,
    P: Partition,
    block: torch.Tensor | None,
    *,
    root: int | None = None,
    region: RegionLike | None = None,
    flip: int | Sequence[int] = (),
) -> None:
    """Write this rank's block of a tensor into an array, as :func:`distdl.data.read_block` reads it.

    Args:
        array: anything with a shape that slices can be assigned to: of NumPy, ``numpy.memmap``, h5py, zarr or torch. It
            converts the numbers to its dtype.
        P: the partition, as for :meth:`distdl.Partition.slices`.
        block: this rank's block, without a halo; only its values are written. Ranks outside of P may pass None.
        root: the number of the worker of P that receives and writes all blocks, one after another, for arrays in
            memory, files that a single rank opens, and chunks that hold parts of several blocks; other ranks may pass
            None as ``array``. By default every rank writes its block, into an array that all of them have opened: zarr,
            HDF5 with ``driver="mpio"``, or a memory map of one file (on several nodes only if their file system keeps
            mapped pages equal).
        region, flip: the part of the array that the blocks make up, as for :func:`distdl.data.read_block`.

    Raises:
        ValueError: on all ranks, if the ranks' arguments or the shapes of their arrays differ, a block does not have
            the shape of its place, root is not a worker, or two ranks would write into the same chunk, or into an HDF5
            file that is not open for parallel writing. Then nothing has been written.
        TypeError: on all ranks, if ``block`` is not a tensor, or ``array`` is missing where it is written.

    An error of the array, such as a full disk, is raised on all ranks; other blocks may have been written by then.
    Collective over the communicator that P comes from. When it returns, all blocks are in the array; flushing a file is
    left to the program.
    """
    compared = {"root": root, "region": region, "flip": flip}
    with constructing("write_block", {"P": P}, compared) as (grid,):
        if root is not None and grid.known and not 0 <= index(root) < grid.size:
            raise ValueError(f"write_block: root={root} is not a worker of {P}")
        writes = grid.active if root is None else grid.rank == root
        if writes and not (hasattr(array, "shape") and hasattr(array, "__setitem__")):
            raise TypeError(f"write_block: array is a {type(array).__name__}; it has to have a shape and take slices")
        if grid.active and not isinstance(block, torch.Tensor):
            raise TypeError(f"write_block: block is a {type(block).__name__}; it has to be a torch.Tensor")
        values = _values(block) if grid.active and isinstance(block, torch.Tensor) else np.empty(0)
    if not grid.known:
        return
    all_ranks = grid.constructing_ranks()
    target = array if writes else None
    texts = gather_or_raise("write_block", all_ranks, lambda: WriteArguments.describe(target, values))
    workers = [WriteArguments(texts[all_ranks.ranks.index(rank)]) for rank in grid.ranks]
    # All ranks know the same of each worker, and raise the same errors.
    part = Region.of("write_block", _common_shape(workers), region, flip)
    boxes = _boxes(grid, part)
    for worker, box, rank in zip(workers, boxes, grid.ranks, strict=True):
        if worker.block_shape != [b.stop - b.start for b in box]:
            raise ValueError(
                f"write_block: the block on rank {rank} has shape {worker.block_shape}; its place in the array, "
                f"[{', '.join(f'{b.start}:{b.stop}' for b in box)}], has shape {[b.stop - b.start for b in box]}"
            )
    if root is None:
        _refuse_races(grid, part, workers)
    with agreed("write_block", all_ranks, lambda: ""):  # no more arguments to compare, only errors
        if root is None and target is not None:
            _assign(target, boxes[grid.rank], values, part)
        elif root is not None and grid.active:
            _write_by_root(target, grid, root, workers, boxes, values, part)


class WriteArguments:
    """The shape and the chunks of the array on a rank, and the shape and the dtype of its block.

    Attributes:
        shape: None on a rank that does not write.
        serial_driver: the driver with which the rank has opened an HDF5 file, if it cannot write in parallel.
    """

    def __init__(self, text: bytes) -> None:
        self.shape, self.chunks, self.serial_driver, self.block_shape, self.dtype = json.loads(text)

    @staticmethod
    def describe(array: Assignable | None, values: NDArray[np.generic]) -> bytes:
        chunks = chunk_extents(array, "shards") or chunk_extents(array)
        driver: object = getattr(getattr(array, "file", None), "driver", None)  # None but for datasets of h5py
        serial_driver = None if driver in (None, "mpio") else str(driver)
        shape = None if array is None else list(array.shape)
        return json.dumps([shape, chunks, serial_driver, values.shape, values.dtype.str]).encode()


def _values(block: torch.Tensor) -> NDArray[np.generic]:
    """A block in host memory. NumPy does not have bfloat16."""
    block = block.detach().resolve_conj().resolve_neg().cpu()
    return (block.float() if block.dtype is torch.bfloat16 else block).contiguous().numpy()


def _common_shape(workers: Sequence[WriteArguments]) -> Sequence[int]:
    shapes: list[list[int]] = [worker.shape for worker in workers if worker.shape is not None]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"write_block: the ranks have arrays of the shapes {shapes}; they must be equal")
    return shapes[0]


def _boxes(grid: Grid, region: Region) -> list[Box]:
    """The part of the array that each worker's block fills, in worker order."""
    if grid.dim > len(region.shape):
        raise ValueError(
            f"write_block: an array of shape {list(region.array_shape)}, and P of shape {list(grid.shape)}; it has to "
            f"have at least {grid.dim} dimensions"
        )
    extents = grid.shape + (1,) * (len(region.shape) - grid.dim)
    blocks = itertools.product(*map(cut, region.shape, extents))
    return [region.slices(as_slices(block)) for block in blocks]


def _refuse_races(grid: Grid, region: Region, workers: Sequence[WriteArguments]) -> None:
    """Raise ValueError if two ranks would write into the same chunk, or the same serial HDF5 file."""
    advice = "let one rank write for all, with root=0"
    if grid.size > 1 and (driver := next(filter(None, (worker.serial_driver for worker in workers)), None)):
        raise ValueError(
            f"write_block: the HDF5 file is open with driver={driver!r}, in which several ranks cannot write; open it "
            f"with driver='mpio', or {advice}"
        )
    if 0 in region.shape:
        return
    for worker in workers:
        for d, chunk in enumerate(worker.chunks or ()):
            count = grid.shape[d] if d < grid.dim else 1
            parts = [region.slice(d, slice(*block)) for block in cut(region.shape[d], count)]
            parts = sorted((part for part in parts if part.stop > part.start), key=lambda part: part.start)
            for left, right in itertools.pairwise(parts):
                if (left.stop - 1) // chunk == right.start // chunk:
                    raise ValueError(
                        f"write_block: the array is stored in chunks of {worker.chunks}, and the blocks "
                        f"{left.start}:{left.stop} and {right.start}:{right.stop} of dimension {d} are in the same "
                        "chunk, which two ranks cannot write at the same time; choose chunks that fit into the "
                        f"blocks, or {advice}"
                    )


def _assign(array: Assignable, box: Box, values: NDArray[np.generic], region: Region) -> None:
    if values.size:
        block = np.flip(values, region.reversed_dims)
        array[box] = torch.from_numpy(block.copy()) if isinstance(array, torch.Tensor) else block


def _write_by_root(
    array: Assignable | None,
    grid: Grid,
    root: int,
    workers: Sequence[WriteArguments],
    boxes: Sequence[Box],
    values: NDArray[np.generic],
    region: Region,
) -> None:
    """Send all blocks to the root, which writes each of them as it arrives. Collective over the workers."""
    errors = []
    messages = grid.byte_messages("write_block")
    if array is None:
        if values.size:
            messages.send(grid.ranks[root], torch.from_numpy(values.reshape(-1).view(np.uint8)))
        messages.wait()
        return
    for rank, worker, box in zip(grid.ranks, workers, boxes, strict=True):
        block = values if rank == grid.me else _receive_block(messages, rank, worker)
        try:
            _assign(array, box, block, region)
        except Exception as error:  # raised at the end: the other ranks wait until their blocks are received
            errors.append(error)
    if errors:
        raise errors[0]


def _receive_block(messages: _core.ByteMessages, rank: int, sender: WriteArguments) -> NDArray[np.generic]:
    nbytes = math.prod(sender.block_shape) * np.dtype(sender.dtype).itemsize
    if not nbytes:
        return np.empty(sender.block_shape, sender.dtype)
    block = messages.receive(rank, nbytes)
    messages.wait()
    return block.numpy().view(sender.dtype).reshape(sender.block_shape)
