"""Further import paths of parts of this package, under which existing programs import them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from distdl import _core

IntArray: TypeAlias = NDArray[np.int64]
Context: TypeAlias = torch.autograd.function.FunctionCtx


class HasShape(Protocol):
    """A tensor, its structure or an array."""

    @property
    def shape(self) -> Sequence[int]:
        """The shape."""
        ...


class ZeroVolumeCorrectorFunction(torch.autograd.Function):
    """Turn a zero-volume tensor into the scalar 0, on which ``backward()`` can be called; copy any other tensor.

    It takes no communication. The result has the dtype of the input.
    """

    @staticmethod
    def forward(ctx: Context, input: torch.Tensor) -> torch.Tensor:
        """Return 0 for a zero-volume tensor, else a copy."""
        ctx.shape = input.shape
        return input.new_zeros(()) if input.numel() == 0 else input.clone()

    @staticmethod
    def backward(ctx: Context, grad_output: torch.Tensor) -> torch.Tensor:
        """Return the gradient in the shape of the input."""
        return grad_output.new_zeros(ctx.shape) if 0 in ctx.shape else grad_output.clone()


def compute_subtensor_shapes_balanced(structure: HasShape, shape: Sequence[int]) -> IntArray:
    """The shape of every worker's block when a tensor of this structure is balanced over workers of the given shape.

    Args:
        structure: the global tensor, or anything with its ``shape``.
        shape: the shape of the partition.

    Returns:
        An array of shape ``[*shape, dim]``.
    """
    extents = [int(extent) for extent in shape]
    shapes = np.empty([*extents, len(extents)], dtype=np.int64)
    for index in np.ndindex(*extents):
        shapes[index] = compute_subshape(extents, index, structure.shape)
    return shapes


def compute_subtensor_stop_indices(shapes: IntArray) -> IntArray:
    """One past the last global index of every worker's block, from the shapes of all blocks: ``[*shape, dim]``."""
    return np.stack([np.cumsum(shapes[..., d], axis=d) for d in range(shapes.shape[-1])], axis=-1)


def compute_subtensor_start_indices(shapes: IntArray) -> IntArray:
    """The first global index of every worker's block, from the shapes of all blocks: ``[*shape, dim]``."""
    return compute_subtensor_stop_indices(shapes) - shapes


def _block(shape: Sequence[int], index: Sequence[int], extents: Sequence[int]) -> IntArray:
    blocks = [_core.balanced_block(int(n), int(p), int(i)) for p, i, n in zip(shape, index, extents, strict=True)]
    return np.array(blocks, dtype=np.int64).reshape(-1, 2)


def compute_subshape(P_shape: Sequence[int], index: Sequence[int], shape: Sequence[int]) -> IntArray:
    """The shape of the balanced block of the worker at ``index``."""
    block = _block(P_shape, index, shape)
    return block[:, 1] - block[:, 0]


def compute_start_index(P_shape: Sequence[int], index: Sequence[int], shape: Sequence[int]) -> IntArray:
    """The first global index of the balanced block of the worker at ``index``."""
    return _block(P_shape, index, shape)[:, 0]


def compute_stop_index(P_shape: Sequence[int], index: Sequence[int], shape: Sequence[int]) -> IntArray:
    """One past the last global index of the balanced block of the worker at ``index``."""
    return _block(P_shape, index, shape)[:, 1]


def compute_intersection(
    r0_start: Sequence[int], r0_stop: Sequence[int], r1_start: Sequence[int], r1_stop: Sequence[int]
) -> tuple[IntArray, IntArray, IntArray]:
    """(start, stop, shape) of the overlap of two boxes; shape is 0 in dimensions in which they do not meet."""
    start = np.maximum(r0_start, r1_start)
    stop = np.minimum(r0_stop, r1_stop)
    return start, stop, np.maximum(stop - start, 0)


def install() -> None:
    """Make the paths importable."""
    from distdl.partition import Partition
    from distdl.structure import TensorStructure, zero_volume_tensor

    decomposition = (
        compute_subtensor_shapes_balanced,
        compute_subtensor_start_indices,
        compute_subtensor_stop_indices,
    )
    slicing = (compute_subshape, compute_start_index, compute_stop_index, compute_intersection)
    paths: dict[str, dict[str, object]] = {
        "distdl.backend": {},
        "distdl.backend.backend": {"Partition": Partition},
        "distdl.backends": {},
        "distdl.backends.mpi": {"Partition": Partition},
        "distdl.backends.mpi.partition": {"MPIPartition": Partition},
        "distdl.utilities": {},
        "distdl.utilities.torch": {"TensorStructure": TensorStructure, "zero_volume_tensor": zero_volume_tensor},
        "distdl.utilities.tensor_decomposition": {function.__name__: function for function in decomposition},
        "distdl.utilities.slicing": {function.__name__: function for function in slicing},
    }
    for path, names in paths.items():
        module = ModuleType(path, "Names of this package as other programs know them.")
        module.__path__ = []  # so that modules below it can be imported
        module.__dict__.update(names)
        sys.modules[path] = module
        parent, _, name = path.rpartition(".")
        setattr(sys.modules[parent], name, module)
