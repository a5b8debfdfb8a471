"""What is timed: the names in the tables, and how to make the case of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import exchanges

import cases
from cases import Case
from distdl import Partition


@dataclass(frozen=True)
class Entry:
    """A name in the tables, and how to make its case for n elements."""

    name: str
    make: Callable[[Partition, int], Case]
    checked: bool = True  # with distdl's structure check
    up_to: float = float("inf")  # bytes
    moves: bool = True  # otherwise all stays where it is, and torch.clone is what it is compared with


ENTRIES = [
    Entry("Broadcast", cases.broadcast),
    Entry("Broadcast-unchecked", cases.broadcast, checked=False, up_to=1024),
    Entry("SumReduce", cases.sum_reduce),
    Entry("AllSumReduce", cases.all_sum_reduce),
    Entry("AllGather", cases.all_gather),
    Entry("ReduceScatter", cases.reduce_scatter),
    *(Entry(f"Repartition-{dims}d", exchanges.repartition_contiguous(dims)) for dims in (2, 3, 4)),
    *(Entry(f"Repartition-{dims}d-strided", exchanges.repartition_strided(dims)) for dims in (2, 3, 4)),
    *(Entry(f"HaloExchange-{dims}d", exchanges.halo_exchange(dims)) for dims in (1, 2, 3)),
    Entry("HaloExchange-images", exchanges.halo_exchange_of_images),
    Entry("Broadcast-self", cases.broadcast_to_oneself, moves=False),
    Entry("Repartition-same", cases.repartition_to_the_same, moves=False),
    Entry("HaloExchange-nobody", cases.halo_exchange_with_nobody, moves=False),
]
