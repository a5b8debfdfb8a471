"""The group collectives, and what moves nothing, on two ranks. To add one, write a function that makes a Case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from contestants import ROOT, Contestant
from torch import Tensor

import distdl
from distdl import Partition, nn

ByHand = Callable[[Any], Callable[[Tensor, Tensor], Contestant]]  # of a Raw, or of Clone where all stays in place


@dataclass(frozen=True)
class Case:
    """How to construct a layer, this rank's input, and how to do both directions by hand."""

    construct: Callable[[], torch.nn.Module]
    x: Tensor
    forward: ByHand
    adjoint: ByHand
    message: int  # elements of the largest message


def broadcast(world: Partition, n: int) -> Case:
    """A vector from one rank to both."""
    root = first_alone(world)
    return Case(lambda: nn.Broadcast(root, world), on(root, n), lambda raw: raw.broadcast, lambda raw: raw.reduce, n)


def sum_reduce(world: Partition, n: int) -> Case:
    """The sum of two vectors for one rank."""
    root = first_alone(world)
    return Case(lambda: nn.SumReduce(world, root), on(world, n), lambda raw: raw.reduce, lambda raw: raw.broadcast, n)


def all_sum_reduce(world: Partition, n: int) -> Case:
    """The sum of two vectors for both."""

    def construct() -> torch.nn.Module:
        return nn.AllSumReduce(world, axes_reduce=[0])

    return Case(construct, on(world, n), lambda raw: raw.all_reduce, lambda raw: raw.all_reduce, n)


def all_gather(world: Partition, n: int) -> Case:
    """A vector from its halves."""

    def construct() -> torch.nn.Module:
        return nn.AllGather(world, axes_all_gather=[0])

    return Case(construct, on(world, n // 2), lambda raw: raw.all_gather, lambda raw: raw.reduce_scatter, n // 2)


def reduce_scatter(world: Partition, n: int) -> Case:
    """Half of the sum of two vectors for each rank."""

    def construct() -> torch.nn.Module:
        return nn.ReduceScatter(world, axes_reduce_scatter=[0])

    return Case(construct, on(world, n), lambda raw: raw.reduce_scatter, lambda raw: raw.all_gather, n // 2)


def broadcast_to_oneself(world: Partition, n: int) -> Case:
    """A vector from one rank to the same rank."""
    root = first_alone(world)
    return _in_place(lambda: nn.Broadcast(root, root), on(root, n))


def repartition_to_the_same(world: Partition, n: int) -> Case:
    """Blocks that are where they shall be."""
    return _in_place(lambda: nn.Repartition(world, world), on(world, n))


def halo_exchange_with_nobody(world: Partition, n: int) -> Case:
    """One block, which has no neighbor."""
    root = first_alone(world)
    return _in_place(lambda: nn.HaloExchange(root, [(0, 0)]), on(root, n))


def _in_place(construct: Callable[[], torch.nn.Module], x: Tensor) -> Case:
    return Case(construct, x, lambda clone: clone.keep, lambda clone: clone.keep, message=0)


def first_alone(world: Partition) -> Partition:
    """The partition of one rank."""
    return world.create_partition_inclusive([ROOT])


def on(partition: Partition, *shape: int) -> Tensor:
    """An input of this shape on the ranks in the partition, and of zero volume elsewhere."""
    x = torch.randn(shape) if partition.active else distdl.zero_volume_tensor()
    return x.requires_grad_()
