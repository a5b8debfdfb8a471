"""Scatter whole tensors of one rank to blocks, and gather blocks."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import overload

import torch

from distdl import operators
from distdl.partitions.construction import PartitionLike, constructing, constructor, grid_of, is_partition, tell
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition
from distdl.partitions.structure import zero_volume_tensor
from distdl.torch_compat.trees import SequenceKey, leaves_by_path, tree_flatten, tree_unflatten


@overload
def scatter(x: torch.Tensor | None, P_x: PartitionLike, root: int = 0) -> torch.Tensor: ...
@overload
def scatter(x: object, P_x: object, root: int = 0) -> object: ...
@constructor
def scatter(x: object, P_x: object, root: int = 0) -> object:
    """Scatter a tensor of one rank in balanced blocks.

    Args:
        x: on the root a tensor with as many dimensions as P_x, or a structure of tensors. Other ranks may pass None;
            what they pass says on which device they receive their block, the CPU if it is None.
        P_x: the partition of the result, or the same structure of partitions. None in place of a partition gives every
            rank the whole tensor.
        root: a rank of the communicator that the partitions come from.

    Returns:
        This worker's block; zero volume on ranks outside of P_x. In a backward pass the root receives the gradients of
        all blocks, and the sum of all ranks' gradients of a whole tensor.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described.

    Collective over the communicator that the partitions come from; over MPI.COMM_WORLD without partitions.
    """
    if is_partition(P_x):
        return _scattered(x, grid_of(P_x), root)
    places, structure = tree_flatten(P_x, is_leaf=is_partition)
    first = next(filter(is_partition, places), None) or Partition()
    all_ranks = grid_of(first).constructing_ranks()
    with constructing("scatter", {"P": first}, {"root": root, "P_x": str(structure)}):
        wrong = [P for P in places if P is not None and not is_partition(P)]
        if wrong or not places:
            raise TypeError(
                f"scatter: P_x is or holds a {type((wrong or [P_x])[0]).__name__}; it has to be a distdl.Partition or "
                "an mpi4py intracommunicator, None for a whole tensor, or a structure of these"
            )
        tensors, structure_of_x = tree_flatten(x)
        if x is None and all_ranks.me != root:
            tensors = [None] * len(places)
        elif structure_of_x != structure:
            raise TypeError(f"scatter: x and P_x have different structures: {structure_of_x} and {structure}")
    parts = [
        _scattered(tensor, all_ranks, root, is_whole=True) if P is None else _scattered(tensor, grid_of(P), root)
        for tensor, P in zip(tensors, places, strict=True)
    ]
    return tree_unflatten(parts, structure)


def _scattered(x: object, P: Grid, root: int, is_whole: bool = False) -> torch.Tensor:
    """The block of a tensor; or the whole tensor, for the ranks of a line."""

    def problem_of(grid: Grid) -> Exception | None:
        is_root = grid.known and grid.me == root
        if not isinstance(x, torch.Tensor) and (x is not None or is_root):
            return TypeError(f"scatter: x is of type {type(x).__name__}; it has to be a torch.Tensor")
        if not is_whole and isinstance(x, torch.Tensor) and is_root and x.dim() != grid.dim:
            return ValueError(
                f"scatter: x has shape {list(x.shape)} and P_x has shape {list(grid.shape)}; they need as many "
                "dimensions"
            )
        return None

    grid, at = _with_root("scatter", P, root, problem_of)
    device = x.device if isinstance(x, torch.Tensor) else None
    block = x if at.active and isinstance(x, torch.Tensor) else zero_volume_tensor(device=device)
    if is_whole:
        return operators.broadcast(at, grid, preserve_batch=False)(block)
    return operators.repartition(at, grid, preserve_batch=False)(block)


@overload
def gather(y: torch.Tensor, P_y: PartitionLike, root: int = 0) -> torch.Tensor: ...
@overload
def gather(y: object, P_y: object, root: int = 0) -> object: ...
@constructor
def gather(y: object, P_y: object, root: int = 0) -> object:
    """Gather a tensor in blocks on one rank.

    Args:
        y: a tensor in blocks, or a structure of tensors, such as the results of :func:`distdl.distribute`'s models.
        P_y: its partition, or the same structure of partitions, such as the model's ``output_partition``. None in place
            of a partition leaves a tensor as it is, whole on every rank.
        root: a rank of the communicator that the partitions come from.

    Returns:
        Whole tensors on the root, zero volume on all other ranks, in the same structure. In a backward pass each worker
        receives the gradients of its block.

    Raises:
        TypeError, ValueError: on all ranks, if an argument is not as described.

    Collective over the communicator that the partitions come from.
    """
    leaves, structure = tree_flatten(y)
    places = tree_flatten(P_y, is_leaf=is_partition)[0]
    partitions, missing = [P for P in places if is_partition(P)], []
    in_blocks = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if len(places) != len(leaves):  # some classes leave out what is None
        by_path, paths = leaves_by_path(P_y, is_partition), [*leaves_by_path(y)]
        missing = [path for path in paths if path not in by_path and (not path or isinstance(path[-1], SequenceKey))]
        places = [by_path.get(path) for path in paths]
    in_blocks = [i for i in in_blocks if places[i] is not None]
    if len(partitions) != len(in_blocks) or missing:
        problem = TypeError(f"gather: {len(in_blocks) + len(missing)} tensors and {len(partitions)} partitions")
        tell("gather", problem, partitions)
        raise problem
    for i in in_blocks:
        grid, at = _with_root("gather", places[i], root, lambda grid: None)
        leaves[i] = operators.repartition(grid, at, preserve_batch=False)(leaves[i])
    return tree_unflatten(leaves, structure)


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
