"""Reading this rank's block of an array that no rank could hold as a whole."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from distdl.operators.constructors import halo_widths
from distdl.parameters.layout import cut

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distdl.operators.constructors import HaloWidths, Widths
    from distdl.partition import Partition

# NumPy's dtypes that torch has.
_DTYPES = {
    *map(np.dtype, ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")),
}
_WASTE = 2.0  # times the array that all ranks together may read without a warning


class Sliceable(Protocol):
    """An array of NumPy, a memory map, a dataset of h5py or zarr, a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, key: tuple[slice, ...], /) -> NDArray[np.generic] | torch.Tensor: ...


def read_block(array: Sliceable, P: Partition, halo: HaloWidths = 0, *, fill: complex | None = None) -> torch.Tensor:
    """This rank's block of an array, as a tensor of its own. Nothing but the block is read.

    Args:
        array: anything with a shape that can be sliced: of NumPy, ``numpy.memmap``, h5py, zarr or torch.
        P: the partition, as for :meth:`distdl.Partition.slices`.
        halo: how many further elements to read around the block: for all dimensions of the array, or for each of them
            a number or a pair (left, right). At the boundary of the array the halo ends.
        fill: the value of elements that are masked. Without it an array that may mask elements is refused, as those of
            ``numpy.ma`` and variables of netCDF4 are.

    Returns:
        The block with its halo. On ranks outside of P a tensor of zero volume, with as many dimensions.

    Raises:
        ValueError: if P has more dimensions than the array, the halo does not fit the array's number of dimensions, or
            a width is negative.
        TypeError: if the array may mask elements and fill is missing, or has elements that no tensor has, such as
            objects, dates, texts and quantities with units. This depends on the array and not on the block, so that
            it is raised on all ranks, also on those outside of P. So is that of an unfit fill.

    If the array is stored in chunks that lie across the blocks, several ranks read the same chunks. A ``UserWarning``
    on the first worker says so, if all ranks together read at least twice the array.

    No other rank has to call it, and the processes of a ``torch.utils.data.DataLoader`` may.
    """
    shape = tuple(array.shape)
    widths = halo_widths(halo, len(shape), "read_block")
    if any(width < 0 for width in itertools.chain(*widths)):
        raise ValueError(f"read_block: halo {halo}; widths must be at least 0")
    own = P.slices(shape)
    if P.active:
        own = tuple(_grown(one, n, *width) for one, n, width in zip(own, shape, widths, strict=True))
    if P.rank == 0:
        _warn_of_chunks(array, P, widths)
    return _own_tensor(_plain(array, array[own], fill))


def _plain(array: Sliceable, part: object, fill: complex | None) -> NDArray[np.generic] | torch.Tensor:
    """A block without mask, unit or labels. Raises TypeError on all ranks for what a tensor cannot hold."""
    if isinstance(part, torch.Tensor):
        return part
    if hasattr(part, "units") and hasattr(part, "magnitude"):
        raise TypeError("read_block: a tensor has no units; pass the array's magnitude")
    # Variables of netCDF4 say by `mask` whether their blocks are masked; it is the same for all blocks.
    masks = isinstance(part, np.ma.MaskedArray) or getattr(array, "mask", None) is True
    if masks and fill is None:
        raise TypeError(
            "read_block: the array may have masked elements, and a tensor has no mask; pass fill=VALUE, or let the "
            "array give its values as they are (netCDF4: variable.set_auto_mask(False))"
        )
    values = np.ma.filled(part, fill) if isinstance(part, np.ma.MaskedArray) else np.asarray(part)
    if values.dtype.newbyteorder("=") not in _DTYPES:
        raise TypeError(f"read_block: a tensor cannot have elements of dtype {values.dtype}; convert the array before")
    if fill is not None:
        np.ma.MaskedArray(np.zeros(1, values.dtype), mask=True).filled(
            fill
        )  # raises also where no element of this block is masked
    return values


def _grown(one: slice, n: int, left: int, right: int) -> slice:
    """A slice of n elements with its halo; without elements it stays as it is."""
    return slice(max(0, one.start - left), min(n, one.stop + right)) if one.stop > one.start else one


def _own_tensor(part: NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
    """A contiguous tensor that shares no memory with the array, and can be written."""
    if isinstance(part, torch.Tensor):
        return part.detach().clone(memory_format=torch.contiguous_format)
    values = np.asarray(part)
    is_own = values.flags.owndata and values.flags.writeable and values.flags.c_contiguous
    # torch knows no other order of bytes than the machine's.
    values = values.astype(values.dtype.newbyteorder("="), order="C", copy=not is_own)
    return torch.from_numpy(values)


def _warn_of_chunks(array: Sliceable, P: Partition, widths: Sequence[Widths]) -> None:
    """Warn where all ranks together read much more than the array, because storage is read by whole chunks."""
    chunks: object = getattr(array, "chunks", None)
    if not isinstance(chunks, tuple) or not all(isinstance(chunk, int) and chunk > 0 for chunk in chunks):
        return
    workers = P.grid.shape + (1,) * (len(array.shape) - P.dim)
    factor = math.prod(map(_times_read, array.shape, chunks, workers, widths))
    if factor >= _WASTE:
        warnings.warn(
            f"read_block: the array of shape {list(array.shape)} is stored in chunks of {list(chunks)}, so that the "
            f"{P.size} ranks of {P} read {factor:.1f} times as much as the array has; choose chunks that fit into the "
            "blocks, or cut other dimensions",
            stacklevel=3,
        )


def _times_read(n: int, chunk: int, workers: int, width: Widths) -> float:
    """How many times the elements along a dimension are read by all its workers, in whole chunks."""
    blocks = [_grown(slice(*one), n, *width) for one in cut(n, workers)]
    read = (
        min(n, -(-one.stop // chunk) * chunk) - one.start // chunk * chunk for one in blocks if one.stop > one.start
    )
    return sum(read) / n if n else 1.0
