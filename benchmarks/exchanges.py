"""Repartitions and halo exchanges on two ranks, of tensors of any number of dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from contestants import NOTHING, Overlaps
from torch import Tensor

from cases import Case, first_alone, on
from distdl import Partition, nn

ALL = slice(None)
IMAGE_CHANNELS = 8
MakesCase = Callable[[Partition, int], Case]


def repartition_contiguous(dims: int) -> MakesCase:
    """The halves of a tensor from one rank to both, cut in the first dimension: one stays, one travels."""

    def make(world: Partition, n: int) -> Case:
        root = first_alone(world)
        halves = world.create_cartesian_topology_partition([2] + [1] * (dims - 1))
        whole = root.create_cartesian_topology_partition([1] * dims)
        rows, *others = _shape(n, dims)
        first, second, everything = (slice(0, rows // 2),), (slice(rows // 2, rows),), (ALL,)
        if root.active:
            overlaps = Overlaps(kept=(first, everything), sent=second, received=NOTHING)
        else:
            overlaps = Overlaps(kept=(NOTHING, NOTHING), sent=NOTHING, received=everything)
        x = on(root, rows, *others)
        return _exchange(lambda: nn.Repartition(whole, halves), x, overlaps, overlaps.adjoint(), n // 2)

    return make


def repartition_strided(dims: int) -> MakesCase:
    """From blocks along the first dimension to blocks along the last: each rank keeps half of its block, sends half."""

    def make(world: Partition, n: int) -> Case:
        shape = _shape(n, dims)
        rows, columns, between = shape[0], shape[-1], [1] * (dims - 2)
        P_x, P_y = (world.create_cartesian_topology_partition(grid) for grid in ([2, *between, 1], [1, *between, 2]))
        my_rows, other_rows = _halves(2 * rows, world.rank)
        my_columns, other_columns = _halves(columns, world.rank)
        overlaps = Overlaps(
            kept=((..., my_columns), (my_rows,)),
            sent=(..., other_columns),
            received=(other_rows,),
        )
        return _exchange(lambda: nn.Repartition(P_x, P_y), on(world, *shape), overlaps, overlaps.adjoint(), n // 2)

    return make


def halo_exchange(dims: int) -> MakesCase:
    """Blocks side by side in the last dimension: each grows by the layer of the other that is next to it."""

    def make(world: Partition, n: int) -> Case:
        return _halo_exchange(world, _shape(n, dims))

    return make


def halo_exchange_of_images(world: Partition, n: int) -> Case:
    """Images of 8 channels side by side: each grows by the column of the other that is next to it."""
    side = math.isqrt(n // IMAGE_CHANNELS)
    return _halo_exchange(world, [1, IMAGE_CHANNELS, side, side])


def _halo_exchange(world: Partition, shape: list[int]) -> Case:
    *others, columns = shape
    grid = world.create_cartesian_topology_partition([*(1 for _ in others), 2])
    left, right = world.rank, 1 - world.rank
    edge = columns - 1 if world.rank == 0 else 0
    halo = columns if world.rank == 0 else 0
    overlaps = Overlaps(
        kept=((ALL,), (..., slice(left, left + columns))),
        sent=(..., slice(edge, edge + 1)),
        received=(..., slice(halo, halo + 1)),
    )

    def construct() -> torch.nn.Module:
        return nn.HaloExchange(grid, [(0, 0)] * len(others) + [(left, right)])

    return _exchange(construct, on(world, *shape), overlaps, overlaps.adjoint(adds=True), math.prod(others))


def _exchange(
    construct: Callable[[], torch.nn.Module], x: Tensor, there: Overlaps, back: Overlaps, message: int
) -> Case:
    return Case(construct, x, lambda raw: raw.exchange(there), lambda raw: raw.exchange(back), message)


def _shape(n: int, dims: int) -> list[int]:
    """A power of two as the product of powers of two that are about the same."""
    bits = n.bit_length() - 1
    return [2 ** ((bits + d) // dims) for d in range(dims)]


def _halves(n: int, rank: int) -> tuple[slice, slice]:
    both = slice(0, n // 2), slice(n // 2, n)
    return both[rank], both[1 - rank]
