"""Every operator in every role that fits a job: what the tests of all operators run over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import distdl.nn as dnn
from distdl import Partition
from support.blocks import balanced, grid


@dataclass
class Case:
    """An operator, and the shape of this rank's input: (0,) where it has none."""

    operator: Any
    shape: tuple[int, ...]


def _blocks(P: Partition, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not P.active:
        return (0,)
    extents = zip(shape, P.shape, P.index, strict=True)
    return tuple(stop - start for start, stop in (balanced(n, int(p), int(i)) for n, p, i in extents))


def _everyones(P: Partition, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if P.active else (0,)


def _split(P: Partition) -> tuple[int, int]:
    """The job's ranks as a grid, as square as 1, 2, 3 or 4 (or more) ranks allow."""
    rows = 2 if P.size % 2 == 0 and P.size > 2 else 1
    return rows, P.size // rows


def broadcast_from_last(P: Partition) -> Case:
    """From one rank that receives nothing to all others; on one rank, to itself."""
    P_x = grid(P, [1], [P.size - 1])
    P_y = grid(P, [max(P.size - 1, 1)])
    return Case(dnn.Broadcast(P_x, P_y), _everyones(P_x, (2, 3)))


def broadcast_in_a_ring(P: Partition) -> Case:
    """Everyone sends to the next rank: every rank is in two groups."""
    P_x, P_y = grid(P, [P.size]), grid(P, [P.size], [(r + 1) % P.size for r in range(P.size)])
    return Case(dnn.Broadcast(P_x, P_y), (2, P_x.rank + 1))


def broadcast_down_columns(P: Partition) -> Case:
    """From a row to a grid."""
    rows, columns = _split(P)
    P_x, P_y = grid(P, [1, columns], range(P.size - columns, P.size)), grid(P, [rows, columns])
    return Case(dnn.Broadcast(P_x, P_y), _everyones(P_x, (3,)))


def broadcast_transposed(P: Partition) -> Case:
    """From a column to a grid, each row's copy to a column of the grid."""
    rows, columns = _split(P)
    P_x, P_y = grid(P, [columns, 1]), grid(P, [rows, columns])
    return Case(dnn.Broadcast(P_x, P_y, transpose_src=True), _everyones(P_x, (2, 2)))


def sum_reduce_to_last(P: Partition) -> Case:
    """To one rank that contributes nothing."""
    P_x = grid(P, [max(P.size - 1, 1)])
    P_y = grid(P, [1], [P.size - 1])
    return Case(dnn.SumReduce(P_x, P_y), _everyones(P_x, (2, 3)))


def sum_reduce_rows(P: Partition) -> Case:
    """A grid's rows onto a row, as a linear layer does."""
    rows, columns = _split(P)
    P_x, P_y = grid(P, [rows, columns]), grid(P, [1, rows], range(P.size - rows, P.size))
    return Case(dnn.SumReduce(P_x, P_y, transpose_src=True), (2, 2))


def all_sum_reduce_everything(P: Partition) -> Case:
    """Over all ranks."""
    return Case(dnn.AllSumReduce(P, axes_reduce=[0]), (3, 2))


def all_sum_reduce_columns(P: Partition) -> Case:
    """Along one axis of a grid."""
    P_x = grid(P, _split(P))
    return Case(dnn.AllSumReduce(P_x, axes_keep=[1]), (2, 1 + int(P_x.index[1])))


def all_gather_rows(P: Partition) -> Case:
    """Blocks that follow each other in memory, one of them empty where there are many ranks."""
    P_x = grid(P, [P.size, 1])
    return Case(dnn.AllGather(P_x, axes_all_gather=[0]), _blocks(P_x, (3, 2)))


def all_gather_everything(P: Partition) -> Case:
    """Strided blocks, on the last ranks only."""
    used = max(P.size - 1, 1)
    P_x = grid(P, [1, used], range(P.size - used, P.size))
    return Case(dnn.AllGather(P_x, axes_keep=[]), _blocks(P_x, (2, 5)))


def reduce_scatter_rows(P: Partition) -> Case:
    """Whole tensors in, a block of rows out."""
    return Case(dnn.ReduceScatter(grid(P, [P.size, 1]), axes_reduce_scatter=[0]), (3, 2))


def reduce_scatter_columns(P: Partition) -> Case:
    """Blocks along the kept axis; strided blocks out."""
    P_x = grid(P, _split(P))
    start, stop = balanced(3, int(P_x.shape[0]), int(P_x.index[0]))
    return Case(dnn.ReduceScatter(P_x, axes_keep=[0]), (stop - start, 5))


def repartition_all_to_all(P: Partition) -> Case:
    """Rows to columns, not divisible."""
    P_x = grid(P, [P.size, 1])
    return Case(dnn.Repartition(P_x, grid(P, [1, P.size])), _blocks(P_x, (5, 3)))


def repartition_scatter(P: Partition) -> Case:
    """From the last rank to the others."""
    P_x, P_y = grid(P, [1, 1, 1], [P.size - 1]), grid(P, [1, max(P.size - 1, 1), 1])
    return Case(dnn.Repartition(P_x, P_y), _blocks(P_x, (2, 4, 2)))


def repartition_fewer_elements(P: Partition) -> Case:
    """Fewer rows than ranks, in reversed order."""
    P_x, P_y = grid(P, [P.size, 1]), grid(P, [P.size, 1], range(P.size - 1, -1, -1))
    return Case(dnn.Repartition(P_x, P_y), _blocks(P_x, (2, 3)))


def halo_uneven(P: Partition) -> Case:
    """Other widths left and right, on uneven blocks."""
    P_x = grid(P, _split(P))
    return Case(dnn.HaloExchange(P_x, [(1, 2), 1]), _blocks(P_x, (5, 7)))


def halo_wide(P: Partition) -> Case:
    """Wider than the neighbor's whole block."""
    return Case(dnn.HaloExchange(P, [(3, 4)]), _blocks(P, (5,)))


def halo_periodic(P: Partition) -> Case:
    """Wraps in one dimension, so that a neighbor is met from both sides."""
    P_x = grid(P, [1, P.size])
    return Case(dnn.HaloExchange(P_x, [1, (2, 1)], periodic=[False, True]), _blocks(P_x, (2, 4)))


def halo_cut(P: Partition) -> Case:
    """A negative width on one side."""
    P_x = grid(P, [P.size])
    return Case(dnn.HaloExchange(P_x, [(2, -1)]), _blocks(P_x, (2 * P.size + 1,)))


CASES: dict[str, Callable[[Partition], Case]] = {
    make.__name__: make
    for make in (
        broadcast_from_last, broadcast_in_a_ring, broadcast_down_columns, broadcast_transposed, sum_reduce_to_last,
        sum_reduce_rows, all_sum_reduce_everything, all_sum_reduce_columns, all_gather_rows, all_gather_everything,
        reduce_scatter_rows, reduce_scatter_columns, repartition_all_to_all, repartition_scatter,
        repartition_fewer_elements, halo_uneven, halo_wide, halo_periodic, halo_cut,
    )
}  # fmt: skip


def large_repartition(P: Partition) -> Case:
    """Strided blocks."""
    P_x = grid(P, [P.size, 1])
    return Case(dnn.Repartition(P_x, grid(P, [1, P.size])), _blocks(P_x, (1201, 1403)))


def large_scatter(P: Partition) -> Case:
    """Blocks that arrive in place, from the last rank to the others."""
    P_x, P_y = grid(P, [1], [P.size - 1]), grid(P, [max(P.size - 1, 1)])
    return Case(dnn.Repartition(P_x, P_y), _blocks(P_x, (1500001,)))


def large_halos(P: Partition) -> Case:
    """Two messages to the same neighbor, where there are two ranks."""
    P_x = grid(P, [1, P.size])
    exchange = dnn.HaloExchange(P_x, [0, (501, 402)], periodic=[False, True])
    return Case(exchange, _blocks(P_x, (701, 601 * P.size)))


def large_broadcast(P: Partition) -> Case:
    """From one rank to all others."""
    P_x, P_y = grid(P, [1], [P.size - 1]), grid(P, [max(P.size - 1, 1)])
    return Case(dnn.Broadcast(P_x, P_y), _everyones(P_x, (401, 1001)))


def large_sum(P: Partition) -> Case:
    """To the last rank."""
    return Case(dnn.SumReduce(grid(P, [P.size]), grid(P, [1], [P.size - 1])), (601, 1001))


def large_sums_in_a_ring(P: Partition) -> Case:
    """Of numbers of pieces that differ."""
    P_x, P_y = grid(P, [P.size]), grid(P, [P.size], [(r + 1) % P.size for r in range(P.size)])
    return Case(dnn.SumReduce(P_x, P_y), (100001, 5 * (P_x.rank + 1)))


def large_all_sum(P: Partition) -> Case:
    """Each rank gets the sum over all."""
    return Case(dnn.AllSumReduce(grid(P, [P.size]), axes_reduce=[0]), (701, 1001))


def large_gather(P: Partition) -> Case:
    """Blocks that arrive in place."""
    P_x = grid(P, [P.size])
    return Case(dnn.AllGather(P_x, axes_all_gather=[0]), _blocks(P_x, (900001,)))


def large_gather_of_columns(P: Partition) -> Case:
    """Strided blocks, of sizes that differ."""
    P_x = grid(P, [1, P.size])
    return Case(dnn.AllGather(P_x, axes_keep=[0]), (601, 801 + P_x.rank))


def large_reduce_scatter(P: Partition) -> Case:
    """Strided blocks in, and blocks out."""
    return Case(dnn.ReduceScatter(grid(P, [1, P.size]), axes_reduce_scatter=[1]), (701, 801 * P.size + 1))


# Operators whose messages travel in pieces.
LARGE_CASES: dict[str, Callable[[Partition], Case]] = {
    make.__name__: make
    for make in (
        large_repartition,
        large_scatter,
        large_halos,
        large_broadcast,
        large_sum,
        large_sums_in_a_ring,
        large_all_sum,
        large_gather,
        large_gather_of_columns,
        large_reduce_scatter,
    )
}
