"""Index arithmetic for balanced blocks: shapes, intervals, slices, and loops over indices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distdl import _core

IntArray: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = Sequence[int] | IntArray
Index: TypeAlias = tuple[int, ...]
Slices: TypeAlias = tuple[slice, ...]

INDEX_DTYPE = np.int64
MAX_INT = np.iinfo(INDEX_DTYPE).max
MIN_INT = np.iinfo(INDEX_DTYPE).min


def _block(shape: Ints, index: Ints, extents: Ints) -> IntArray:
    blocks = [_core.balanced_block(int(n), int(p), int(i)) for p, i, n in zip(shape, index, extents, strict=True)]
    return np.array(blocks, dtype=INDEX_DTYPE).reshape(-1, 2)


def compute_subshape(P_shape: Ints, index: Ints, shape: Ints) -> IntArray:
    """The shape of the balanced block of the worker at ``index``."""
    block = _block(P_shape, index, shape)
    return block[:, 1] - block[:, 0]


def compute_start_index(P_shape: Ints, index: Ints, shape: Ints) -> IntArray:
    """The first global index of the balanced block of the worker at ``index``."""
    return _block(P_shape, index, shape)[:, 0]


def compute_stop_index(P_shape: Ints, index: Ints, shape: Ints) -> IntArray:
    """The global index after the last of the balanced block of the worker at ``index``."""
    return _block(P_shape, index, shape)[:, 1]


def compute_subshape_along_axis(P_shape: Ints, index: Ints, shape: Ints, axis: int) -> IntArray:
    """A shape of which one axis alone is that of the balanced block of the worker at ``index``."""
    whole = np.array(shape, dtype=INDEX_DTYPE)
    whole[axis] = compute_subshape(P_shape, index, shape)[axis]
    return whole


def compute_intersection(
    r0_start_index: Ints,
    r0_stop_index: Ints,
    r1_start_index: Ints,
    r1_stop_index: Ints,
) -> tuple[IntArray, IntArray, IntArray]:
    """(start, stop, shape) of the overlap of two boxes; shape is 0 in dimensions in which they do not meet."""
    start = np.maximum(r0_start_index, r1_start_index)
    stop = np.minimum(r0_stop_index, r1_stop_index)
    return start, stop, np.maximum(stop - start, 0)


def assemble_slices(start_index: Ints, stop_index: Ints) -> Slices:
    """A slice for each dimension."""
    return tuple(slice(int(start), int(stop)) for start, stop in zip(start_index, stop_index, strict=True))


def compute_partition_intersection(
    P_x_r_shape: Ints,
    P_x_r_index: Ints,
    P_x_s_shape: Ints,
    P_x_s_index: Ints,
    x_shape: Ints,
) -> Slices | None:
    """The part of the block of worker r that worker s has, as slices of the block of r; None if they share nothing.

    Both partitions cut a tensor of shape ``x_shape`` into balanced blocks.
    """
    r_start, r_stop = (f(P_x_r_shape, P_x_r_index, x_shape) for f in (compute_start_index, compute_stop_index))
    s_start, s_stop = (f(P_x_s_shape, P_x_s_index, x_shape) for f in (compute_start_index, compute_stop_index))
    start, stop, shape = compute_intersection(r_start, r_stop, s_start, s_stop)
    return assemble_slices(start - r_start, stop - r_start) if np.all(shape > 0) else None


def compute_nd_slice_shape(slices: Sequence[slice]) -> IntArray:
    """The shape of what slices with a start and a stop select."""
    return np.array([max(part.stop - (part.start or 0), 0) for part in slices], dtype=INDEX_DTYPE)


def compute_nd_slice_volume(slices: Sequence[slice]) -> int:
    """How many elements such slices select."""
    return int(np.prod(compute_nd_slice_shape(slices)))


def range_index(shape: Ints) -> Iterator[Index]:
    """All indices of an array of this shape, the last one fastest."""
    return itertools.product(*(range(int(n)) for n in shape))


def worker_layout(shape: Ints) -> IntArray:
    """The numbers of workers, row-major, as an array of this shape."""
    return np.arange(int(np.prod(shape)), dtype=INDEX_DTYPE).reshape([int(n) for n in shape])


def filtered_range_index(shape: Ints, filter: Callable[[Index], bool] | Sequence[object]) -> Iterator[Index]:
    """The indices of an array of this shape that a filter keeps.

    Args:
        shape: the shape.
        filter: a function of an index, or what :func:`assemble_index_filter` returns.
    """
    keeps = filter if callable(filter) else _matching(filter)
    return (index for index in range_index(shape) if keeps(index))


def _matching(pattern: Sequence[object]) -> Callable[[Index], bool]:
    def keeps(index: Index) -> bool:
        selected = [
            i in range(*part.indices(i + 1)) if isinstance(part, slice) else i == part
            for i, part in zip(index, pattern, strict=True)
        ]
        return all(selected)

    return keeps


def assemble_index_filter(index: Ints, dims: Ints, invert: bool = False) -> tuple[int | slice, ...]:
    """An index with slices in place of its values, which selects all workers that equal ``index`` elsewhere.

    Args:
        index: the index of a worker.
        dims: the dimensions that keep the value of ``index``; with ``invert`` those that become slices.
        invert: see there.
    """
    kept = [(d in dims) != invert for d in range(len(index))]
    return tuple(int(i) if keep else slice(None) for i, keep in zip(index, kept, strict=True))


def get_rearrange_ordering(num_dims: int, axis: int) -> list[int]:
    """The order of dimensions that brings ``axis`` to the front."""
    return [axis % num_dims, *(d for d in range(num_dims) if d != axis % num_dims)]


def along_axis(shapes: IntArray, d: int) -> IntArray:
    """The extents of the blocks along dimension ``d``, from the shapes of all blocks: ``[*shape, dim]``."""
    first = np.moveaxis(shapes[..., d], d, -1)
    return first.reshape(-1, shapes.shape[d])[0]
