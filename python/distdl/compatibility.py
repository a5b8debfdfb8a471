"""The import paths under which programs know parts of this package: names for the real homes, in this one place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch

from distdl import _core


class ZeroVolumeCorrectorFunction(torch.autograd.Function):
    """Turn a zero-volume tensor into the scalar 0, on which ``backward()`` can be called; others pass unchanged."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor) -> torch.Tensor:
        """Return 0 for a zero-volume tensor, else a copy."""
        ctx.shape = input.shape
        return input.new_zeros(()) if input.numel() == 0 else input.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        """Return the gradient in the shape of the input."""
        return grad_output.new_zeros(ctx.shape) if 0 in ctx.shape else grad_output.clone()


def compute_subtensor_shapes_balanced(structure: Any, shape: Sequence[int]) -> Any:
    """The shape of every worker's block when a tensor of this structure is balanced over workers of the given shape.

    Args:
        structure: anything with a ``shape``: the global tensor.
        shape: the shape of the partition.

    Returns:
        An array of shape ``[*shape, dim]``.
    """
    extents = [int(extent) for extent in shape]
    shapes = np.empty([*extents, len(extents)], dtype=np.int64)
    for index in np.ndindex(*extents):
        shapes[index] = compute_subshape(extents, index, structure.shape)
    return shapes


def compute_subtensor_stop_indices(shapes: Any) -> Any:
    """One past the last global index of every worker's block, from the shapes of all blocks: ``[*shape, dim]``."""
    return np.stack([np.cumsum(shapes[..., d], axis=d) for d in range(shapes.shape[-1])], axis=-1)


def compute_subtensor_start_indices(shapes: Any) -> Any:
    """The first global index of every worker's block, from the shapes of all blocks: ``[*shape, dim]``."""
    return compute_subtensor_stop_indices(shapes) - shapes


def _block(shape: Sequence[int], index: Sequence[int], extents: Sequence[int]) -> Any:
    blocks = [_core.balanced_block(int(n), int(p), int(i)) for p, i, n in zip(shape, index, extents, strict=True)]
    return np.array(blocks, dtype=np.int64).reshape(-1, 2)


def compute_subshape(P_shape: Sequence[int], index: Sequence[int], shape: Sequence[int]) -> Any:
    """The shape of the balanced block of the worker at ``index``."""
    block = _block(P_shape, index, shape)
    return block[:, 1] - block[:, 0]


def compute_start_index(P_shape: Sequence[int], index: Sequence[int], shape: Sequence[int]) -> Any:
    """The first global index of the balanced block of the worker at ``index``."""
    return _block(P_shape, index, shape)[:, 0]


def compute_stop_index(P_shape: Sequence[int], index: Sequence[int], shape: Sequence[int]) -> Any:
    """One past the last global index of the balanced block of the worker at ``index``."""
    return _block(P_shape, index, shape)[:, 1]


def compute_intersection(
    r0_start: Sequence[int], r0_stop: Sequence[int], r1_start: Sequence[int], r1_stop: Sequence[int]
) -> tuple[Any, Any, Any]:
    """(start, stop, shape) of the overlap of two boxes; shape is 0 where they do not meet."""
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
    paths: dict[str, dict[str, Any]] = {
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
        module.__path__ = []  # so that what is below it can be imported
        module.__dict__.update(names)
        sys.modules[path] = module
        parent, _, name = path.rpartition(".")
        setattr(sys.modules[parent], name, module)
