"""What is timed: each primitive on two ranks. To add one, write a function that makes a Case and list it in ENTRIES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from contestants import NOTHING, ROOT, Contestant, Overlaps, Raw
from torch import Tensor

import distdl
from distdl import Partition, nn

ByHand = Callable[[Raw], Callable[[Tensor, Tensor], Contestant]]


@dataclass(frozen=True)
class Case:
    """A layer, this rank's input, and how to do both directions by hand."""

    layer: torch.nn.Module
    x: Tensor
    forward: ByHand
    adjoint: ByHand


def broadcast(world: Partition, n: int) -> Case:
    """A vector from one rank to both."""
    root = world.create_partition_inclusive([ROOT])
    return Case(nn.Broadcast(root, world), _on(root, n), lambda raw: raw.broadcast, lambda raw: raw.reduce)


def sum_reduce(world: Partition, n: int) -> Case:
    """The sum of two vectors for one rank."""
    root = world.create_partition_inclusive([ROOT])
    return Case(nn.SumReduce(world, root), _on(world, n), lambda raw: raw.reduce, lambda raw: raw.broadcast)


def all_sum_reduce(world: Partition, n: int) -> Case:
    """The sum of two vectors for both."""
    layer = nn.AllSumReduce(world, axes_reduce=[0])
    return Case(layer, _on(world, n), lambda raw: raw.all_reduce, lambda raw: raw.all_reduce)


def all_gather(world: Partition, n: int) -> Case:
    """A vector from its halves."""
    layer = nn.AllGather(world, axes_all_gather=[0])
    return Case(layer, _on(world, n // 2), lambda raw: raw.all_gather, lambda raw: raw.reduce_scatter)


def reduce_scatter(world: Partition, n: int) -> Case:
    """Half of the sum of two vectors for each rank."""
    layer = nn.ReduceScatter(world, axes_reduce_scatter=[0])
    return Case(layer, _on(world, n), lambda raw: raw.reduce_scatter, lambda raw: raw.all_gather)


def repartition_contiguous(world: Partition, n: int) -> Case:
    """The halves of a vector from one rank to both: one stays, one travels."""
    root = world.create_partition_inclusive([ROOT])
    first, second, everything = (slice(0, n // 2),), (slice(n // 2, n),), (slice(None),)
    if root.active:
        overlaps = Overlaps(kept=(first, everything), sent=second, received=NOTHING)
    else:
        overlaps = Overlaps(kept=(NOTHING, NOTHING), sent=NOTHING, received=everything)
    return _exchange(nn.Repartition(root, world), _on(root, n), overlaps, overlaps.adjoint())


def repartition_strided(world: Partition, n: int) -> Case:
    """A matrix from rows to columns: each rank keeps half of its block and sends half, strided on one side."""
    rows, columns = _matrix(n)
    P_x, P_y = (world.create_cartesian_topology_partition(shape) for shape in ([2, 1], [1, 2]))
    my_rows, other_rows = _halves(2 * rows, world.rank)
    my_columns, other_columns = _halves(columns, world.rank)
    overlaps = Overlaps(
        kept=((slice(None), my_columns), (my_rows, slice(None))),
        sent=(slice(None), other_columns),
        received=(other_rows, slice(None)),
    )
    return _exchange(nn.Repartition(P_x, P_y), _on(world, rows, columns), overlaps, overlaps.adjoint())


def halo_exchange(world: Partition, n: int) -> Case:
    """Blocks side by side: each grows by the column of the other that is next to it."""
    rows, columns = _matrix(n)
    grid = world.create_cartesian_topology_partition([1, 2])
    left, right = world.rank, 1 - world.rank
    edge = columns - 1 if world.rank == 0 else 0
    halo = columns if world.rank == 0 else 0
    overlaps = Overlaps(
        kept=((slice(None), slice(None)), (slice(None), slice(left, left + columns))),
        sent=(slice(None), slice(edge, edge + 1)),
        received=(slice(None), slice(halo, halo + 1)),
    )
    layer = nn.HaloExchange(grid, [(0, 0), (left, right)])
    return _exchange(layer, _on(world, rows, columns), overlaps, overlaps.adjoint(adds=True))


def _on(partition: Partition, *shape: int) -> Tensor:
    x = torch.randn(shape) if partition.active else distdl.zero_volume_tensor()
    return x.requires_grad_()


def _matrix(n: int) -> tuple[int, int]:
    rows = 2 ** ((n.bit_length() - 1) // 2)
    return rows, n // rows


def _halves(n: int, rank: int) -> tuple[slice, slice]:
    both = slice(0, n // 2), slice(n // 2, n)
    return both[rank], both[1 - rank]


def _exchange(layer: torch.nn.Module, x: Tensor, there: Overlaps, back: Overlaps) -> Case:
    return Case(layer, x, lambda raw: raw.exchange(there), lambda raw: raw.exchange(back))


@dataclass(frozen=True)
class Entry:
    """A name in the table, and how to make its case for n elements."""

    name: str
    make: Callable[[Partition, int], Case]
    checked: bool = True  # with distdl's structure check
    up_to: float = float("inf")  # bytes


ENTRIES = [
    Entry("Broadcast", broadcast),
    Entry("Broadcast-unchecked", broadcast, checked=False, up_to=1024),
    Entry("SumReduce", sum_reduce),
    Entry("AllSumReduce", all_sum_reduce),
    Entry("AllGather", all_gather),
    Entry("ReduceScatter", reduce_scatter),
    Entry("Repartition", repartition_contiguous),
    Entry("Repartition-strided", repartition_strided),
    Entry("HaloExchange", halo_exchange),
]
