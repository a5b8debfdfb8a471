"""Reading this rank's block of an array."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from distdl.data.regions import Region, RegionLike, with_halo
from distdl.operators.constructors import halo_widths
from distdl.partitions.boxes import cut
from distdl.partitions.partition import Partition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distdl.operators.constructors import HaloPair, HaloWidths

_TORCH_DTYPES = set(map(np.dtype, ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")))
_READ_TOO_OFTEN = 2.0  # all ranks together read the array so many times: warn


class Sliceable(Protocol):
    """An array of NumPy, a memory map, a dataset of h5py or zarr, a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[np.generic] | torch.Tensor: ...


def read_block(
    array: Sliceable,
    P: Partition,
    halo: HaloWidths = 0,
    *,
    region: RegionLike | None = None,
    flip: int | Sequence[int] = (),
    fill: complex | None = None,
) -> torch.Tensor:
    """Read this rank's block of an array, or of a region of it, as a new tensor. Only the block is read.

    Args:
        array: anything with a shape that can be sliced: of NumPy, ``numpy.memmap``, h5py, zarr or torch.
        P: the partition, as for :meth:`distdl.Partition.slices`; no communicator, since other ranks need not call it.
        halo: the number of further elements to read around the block: for all dimensions, or for each dimension a
            number or a pair (left, right). The halo ends at the boundary of the region.
        region: the part of the array that is cut into blocks, by default all of it: for each dimension a slice without
            a step, a pair (start, stop) as in a slice, or None for the whole dimension. Further dimensions are whole.
        flip: dimensions along which the region is reversed before it is cut into blocks.
        fill: the value of masked elements. Without it, arrays that may have masked elements, such as those of
            ``numpy.ma`` and netCDF4, raise TypeError.

    Returns:
        The block with its halo, as of the array ``np.flip(array[region], flip)``; on ranks outside of P a tensor of
        zero volume, with as many dimensions.

    Raises:
        ValueError: on ranks with such arguments: if P or the region has more dimensions than the array, the region has
            steps, ``flip`` names a dimension that is not there, the halo does not fit the array's number of dimensions,
            or a width is negative.
        TypeError: on ranks with such arguments: if P is no partition, or the array has no shape; on all ranks, also
            outside of P: if the array may mask elements and fill is missing, if fill does not
            fit, or if no tensor can have its elements, such as objects, dates, texts and quantities with units.

    The first worker warns (``UserWarning``) if all ranks together read at least twice the array, because it is stored
    in chunks that lie across blocks. No other rank has to call it; the processes of a DataLoader may.
    """
    if not hasattr(array, "shape"):
        raise TypeError(f"read_block: array is a {type(array).__name__}; it has to have a shape and take slices")
    if not isinstance(P, Partition):
        raise TypeError(
            f"read_block: P is a {type(P).__name__}; it has to be a distdl.Partition (of a communicator, "
            "distdl.Partition(communicator) makes one, on all its ranks)"
        )
    shape = tuple(array.shape)
    widths = halo_widths(halo, len(shape), "read_block")
    if any(width < 0 for width in itertools.chain(*widths)):
        raise ValueError(f"read_block: halo {halo}; widths must be at least 0")
    part = Region.of("read_block", shape, region, flip)
    block = P.slices(part.shape)
    if P.active:
        block = tuple(map(with_halo, block, part.shape, widths))
    if P.rank == 0:
        _warn_of_chunks(array, P, part, widths)
    return read_box(array, part.slices(block), part.reversed_dims, fill)


def read_box(
    array: Sliceable, box: tuple[slice, ...], reversed_dims: tuple[int, ...] = (), fill: complex | None = None
) -> torch.Tensor:
    """Read a box of an array as a new tensor, reversed along some dimensions."""
    values = _checked_values(array, array[box], fill)
    block = _copy_to_tensor(values)
    return block.flip(reversed_dims) if reversed_dims else block  # HDF5 and zarr do not read backwards


def _checked_values(array: Sliceable, part: object, fill: complex | None) -> NDArray[np.generic] | torch.Tensor:
    """A block without mask, unit or labels. Raises TypeError on all ranks if a tensor cannot hold it."""
    if isinstance(part, torch.Tensor):
        return part
    if hasattr(part, "units") and hasattr(part, "magnitude"):
        raise TypeError("read_block: a tensor has no units; pass the array's magnitude")
    # A netCDF4 variable with the attribute `mask` masks all of its blocks.
    masks = isinstance(part, np.ma.MaskedArray) or getattr(array, "mask", None) is True
    if masks and fill is None:
        raise TypeError(
            "read_block: the array may have masked elements, and a tensor has no mask; pass fill=VALUE, or let the "
            "array give its values as they are (netCDF4: variable.set_auto_mask(False))"
        )
    values = np.ma.filled(part, fill) if isinstance(part, np.ma.MaskedArray) else np.asarray(part)
    if values.dtype.newbyteorder("=") not in _TORCH_DTYPES:
        raise TypeError(f"read_block: a tensor cannot have elements of dtype {values.dtype}; convert the array before")
    if fill is not None:
        # Raises for an unfit fill also where no element of this block is masked.
        np.ma.MaskedArray(np.zeros(1, values.dtype), mask=True).filled(fill)
    return values


def _copy_to_tensor(part: NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
    """Copy to a contiguous, writable tensor that shares no memory with the array."""
    if isinstance(part, torch.Tensor):
        return part.detach().clone(memory_format=torch.contiguous_format)
    values = np.asarray(part)
    is_writable_copy = values.flags.owndata and values.flags.writeable and values.flags.c_contiguous
    # torch has the byte order of the machine only.
    values = values.astype(values.dtype.newbyteorder("="), order="C", copy=not is_writable_copy)
    return torch.from_numpy(values)


def chunk_extents(array: object, name: str = "chunks") -> tuple[int, ...] | None:
    """The extents of an array's chunks (zarr: or of its ``shards``); None if it is not stored in chunks."""
    extents: object = getattr(array, name, None)
    if isinstance(extents, tuple) and all(isinstance(extent, int) and extent > 0 for extent in extents):
        return extents
    return None


def _warn_of_chunks(array: Sliceable, P: Partition, region: Region, widths: Sequence[HaloPair]) -> None:
    """Warn if all ranks together read much more than the region, because storage is read by whole chunks."""
    chunks = chunk_extents(array)
    if chunks is None:
        return
    workers = P.grid.shape + (1,) * (len(array.shape) - P.dim)
    factor = math.prod(
        _read_factor(region, d, chunk, p, width)
        for d, (chunk, p, width) in enumerate(zip(chunks, workers, widths, strict=True))
    )
    if factor >= _READ_TOO_OFTEN:
        part = "array" if region.shape == region.array_shape else "region, in whole chunks,"
        warnings.warn(
            f"read_block: the array of shape {list(array.shape)} is stored in chunks of {list(chunks)}, so that the "
            f"{P.size} ranks of {P} read {factor:.1f} times as much as the {part} has; choose chunks that fit into the "
            "blocks, or cut other dimensions",
            stacklevel=3,
        )


def _read_factor(region: Region, dim: int, chunk: int, workers: int, width: HaloPair) -> float:
    """How many times all workers read the whole chunks of a dimension in which a region lies."""
    n = region.shape[dim]
    blocks = [with_halo(slice(*block), n, width) for block in cut(n, workers)]
    read = (_in_whole_chunks(region, dim, chunk, block) for block in blocks)
    return sum(read) / _in_whole_chunks(region, dim, chunk, slice(0, n)) if n else 1.0


def _in_whole_chunks(region: Region, dim: int, chunk: int, block: slice) -> int:
    """How many elements are read for a part of one dimension of a region."""
    part = region.slice(dim, block)
    last = min(region.array_shape[dim], -(-part.stop // chunk) * chunk)
    return last - part.start // chunk * chunk if part.stop > part.start else 0
