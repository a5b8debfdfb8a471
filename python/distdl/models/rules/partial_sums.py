"""Operations that are split along a dimension over which they sum: each worker computes a part of the sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from distdl import operators
from distdl.models.capture.recording import Node, Run
from distdl.models.operations.failures import deferring
from distdl.models.operations.operation import InputSpec, Operation, Workers
from distdl.models.operations.placement import Blocks, balanced_sizes
from distdl.models.operations.table import in_blocks
from distdl.partitions.boxes import Interval
from distdl.partitions.grid import Grid

Part = Callable[..., torch.Tensor]
Finish = Callable[[torch.Tensor, Sequence[torch.Tensor], Interval], torch.Tensor]
"""A function that computes the result from the sum, the tensors of the operation, and the interval of features."""


def summed_over_last(
    node: Node,
    space: Sequence[int],
    specs: Sequence[InputSpec],
    part: Callable[[Interval], Part],
    finish: Finish = lambda y, tensors, features: y,
) -> Operation:
    """An operation that is split along rows, and along a dimension over which it sums.

    The rows are all dimensions of the result but the last, its features. Each worker sums over its interval of the
    dimension. The workers of the same rows add their sums and scatter the result among themselves, if possible along
    the dimension that P_x splits, as the values around the operation are split.

    Args:
        space: the shape of the result, with the dimension over which it sums in place of the features.
        part: makes the function that computes a worker's sum, with all features, from its interval of the dimension.
        finish: computes the result from the whole sum.
    """
    out = node.outputs[0].shape
    rows = len(out) - 1

    def make(workers: Workers) -> Run:
        target, of_worker = scattered(workers, out), deferring(part(workers.block[-1]), node)
        features = (target.block(workers.rank) or ((0, out[-1]),))[-1]
        group = _group(workers, _scattered_dim(workers, out))
        add: Part = (lambda y: y) if group is None else operators.reduce_scatter_among(*group)
        return lambda *tensors: finish(add(of_worker(*tensors)), tensors, features)

    def received(blocks: Blocks) -> int:
        return (blocks.splits[-1] - 1) * math.prod(out)

    return Operation(
        tuple(space), tuple(specs), in_blocks(make, node.as_function()), frozenset(range(rows + 1)),
        placements=lambda workers: scattered(workers, out), received=received,
    )  # fmt: skip


def scattered(workers: Workers, out: Sequence[int]) -> Blocks:
    """The blocks of a result of this shape, scattered over the workers along the last dimension of their space."""
    blocks = workers.blocks
    count = blocks.splits[-1]  # of the workers of the same rows
    sizes = [*blocks.block_sizes[:-1], (out[-1],)]
    dim = _scattered_dim(workers, out)
    sizes[dim] = tuple(n for size in sizes[dim] for n in balanced_sizes(size, count))
    ranks = []
    for place in map(list, itertools.product(*(range(len(along)) for along in sizes))):
        place[dim], number = divmod(place[dim], count)
        ranks.append(blocks.rank_at[(*place[:-1], number)])
    return Blocks(tuple(ranks), tuple(sizes))


def _scattered_dim(workers: Workers, out: Sequence[int]) -> int:
    """The longest dimension of the rows, if possible among those that P_x splits; the features if there is one row."""
    base = workers.base.shape
    rows = [d for d, n in enumerate(out[:-1]) if n > 1]
    return max(rows, key=lambda d: (d < len(base) and base[d] > 1, out[d]), default=len(out) - 1)


def _group(workers: Workers, dim: int) -> tuple[Grid, int] | None:
    """The workers with this worker's rows, as a grid along `dim`, and `dim`; None if no sums are to be added."""
    count = workers.grid.shape[-1]
    if count == 1 or not workers.grid.active:
        return None
    ranks = workers.grid.side_by_side(workers.grid.place, [workers.grid.dim - 1])
    return workers.grid.related(ranks, [count if d == dim else 1 for d in range(workers.grid.dim)]), dim
