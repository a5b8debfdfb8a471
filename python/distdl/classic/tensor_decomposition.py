"""The blocks of all workers at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from distdl.classic.slicing import *  # noqa: F403
from distdl.classic.slicing import IntArray, Ints, Slices, assemble_slices, compute_intersection, compute_subshape


class HasShape(Protocol):
    """A tensor, its structure or an array."""

    @property
    def shape(self) -> Sequence[int]:
        """The shape."""
        ...


def compute_subtensor_shapes_balanced(global_tensor_structure: HasShape, P_tensor_shape: Sequence[int]) -> IntArray:
    """The shape of every worker's block when a tensor of this structure is balanced over workers of the given shape.

    Args:
        global_tensor_structure: the global tensor, or anything with its ``shape``.
        P_tensor_shape: the shape of the partition.

    Returns:
        An array of shape ``[*P_tensor_shape, dim]``.
    """
    extents = [int(extent) for extent in P_tensor_shape]
    shapes = np.empty([*extents, len(extents)], dtype=np.int64)
    for index in np.ndindex(*extents):
        shapes[index] = compute_subshape(extents, index, global_tensor_structure.shape)
    return shapes


def compute_subtensor_stop_indices(shapes: IntArray) -> IntArray:
    """The global index after the last of every worker's block, from the shapes of all blocks: ``[*shape, dim]``."""
    return np.stack([np.cumsum(shapes[..., d], axis=d) for d in range(shapes.shape[-1])], axis=-1)


def compute_subtensor_start_indices(shapes: IntArray) -> IntArray:
    """The first global index of every worker's block, from the shapes of all blocks: ``[*shape, dim]``."""
    return compute_subtensor_stop_indices(shapes) - shapes


def compute_subtensor_intersection_slice(
    x_start_index: Ints, x_stop_index: Ints, y_start_index: Ints, y_stop_index: Ints
) -> Slices | None:
    """The overlap of two boxes as slices of the first one; None if they share nothing."""
    start, stop, shape = compute_intersection(x_start_index, x_stop_index, y_start_index, y_stop_index)
    first = np.asarray(x_start_index)
    return assemble_slices(start - first, stop - first) if np.all(shape > 0) else None
