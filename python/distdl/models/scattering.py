"""Scatter whole tensors of one rank to blocks, and gather blocks."""

from __future__ import annotations

from collections.abc import Callable
from operator import index

import torch

from distdl import operators
from distdl.partitions.construction import PartitionLike, constructing, constructor, is_partition, tell
from distdl.partitions.grid import Grid
from distdl.partitions.structure import zero_volume_tensor
from distdl.torch_compat.trees import tree_flatten, tree_map_only


@constructor
def scatter(x: torch.Tensor | None, P_x: PartitionLike, root: int = 0) -> torch.Tensor:
    """Scatter a tensor of one rank in balanced blocks.

    Args:
        x: on the root a tensor with as many dimensions as P_x; other ranks may pass None.
        P_x: the partition of the result.
        root: a rank of the communicator that P_x comes from.

    Returns:
        This worker's block; zero volume on ranks outside of P_x. The gradients of all blocks return to the root.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described.

    Collective over the communicator that P_x comes from.
    """
    grid, at = _with_root("scatter", P_x, root, lambda grid: _problem_of_input(x, grid, root))
    block = x if at.active and x is not None else zero_volume_tensor()
    return operators.repartition(at, grid, preserve_batch=False)(block)


@constructor
def gather(y: object, P_y: object, root: int = 0) -> object:
    """Gather a tensor in blocks on one rank.

    Args:
        y: a tensor in blocks, or a structure of tensors, such as the results of :func:`distdl.distribute`'s models.
        P_y: its partition, or the same structure of partitions, such as the model's ``output_partition``.
        root: a rank of the communicator that the partitions come from.

    Returns:
        Whole tensors on the root, zero volume on all other ranks, in the same structure. In a backward pass each worker
        receives the gradients of its block.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described.

    Collective over the communicator that the partitions come from.
    """
    partitions = tree_flatten(P_y, is_leaf=is_partition)[0]
    tensors = [leaf for leaf in tree_flatten(y)[0] if isinstance(leaf, torch.Tensor)]
    grids = [leaf for leaf in partitions if is_partition(leaf)]
    if len(tensors) != len(grids):
        problem = TypeError(f"gather: {len(tensors)} tensors and {len(grids)} partitions")
        tell("gather", problem, grids)
        raise problem
    wholes = []
    for tensor, P in zip(tensors, grids, strict=True):
        grid, at = _with_root("gather", P, root, lambda grid: None)
        wholes.append(operators.repartition(grid, at, preserve_batch=False)(tensor))
    rest = iter(wholes)
    return tree_map_only(torch.Tensor, lambda tensor: next(rest), y)


def _problem_of_input(x: object, grid: Grid, root: int) -> Exception | None:
    is_root = grid.known and grid.me == root
    if not isinstance(x, torch.Tensor) and (x is not None or is_root):
        return TypeError(f"scatter: x is of type {type(x).__name__}; it has to be a torch.Tensor")
    if isinstance(x, torch.Tensor) and is_root and x.dim() != grid.dim:
        return ValueError(
            f"scatter: x has shape {list(x.shape)} and P_x has shape {list(grid.shape)}; they need as many dimensions"
        )
    return None


def _with_root(
    name: str, P: PartitionLike, root: int, problem_of: Callable[[Grid], Exception | None]
) -> tuple[Grid, Grid]:
    """The grid of a partition, and the grid of the root alone with as many dimensions."""
    with constructing(name, {"P": P}, {"root": root}) as (grid,):
        at = index(root)
        problem = problem_of(grid)
        if problem is not None:
            raise problem
        if grid.known and at not in grid.constructors:
            raise ValueError(f"{name}: root={at} is none of the ranks {list(grid.constructors)}")
    return grid, grid.related([at], (1,) * grid.dim)
