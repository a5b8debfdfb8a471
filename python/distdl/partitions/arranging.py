"""Cartesian partitions whose neighbors are on the same host, as far as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

from distdl.partitions.construction import PartitionLike, constructing, constructor
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition, derived_partition
from distdl.partitions.placement import order_on_hosts


@constructor
def arrange(
    P_world: PartitionLike,
    shape: Sequence[int],
    weights: Sequence[float] | None = None,
    host: str | None = None,
) -> Partition:
    """A grid of P_world's workers, in an order in which blocks that exchange halos are on the same host if they can be.

    On hosts with m workers each, every host gets a box of m blocks whose faces to other hosts are the fewest (W. D.
    Gropp, *Using node and socket information to implement MPI Cartesian topologies*, Parallel Computing, 2019). Where
    boxes are not possible, hosts follow each other along the best of some curves through the grid. Of all these orders
    and the row-major one, the partition has the one with the fewest bytes between hosts. The workers may be in any
    order, such as one that goes round the hosts.

    Args:
        P_world: the workers to choose from.
        shape: the extents, whose product is at most the number of workers. Further workers become inactive.
        weights: the bytes that a block sends to a neighbor along each dimension, or numbers in proportion to them. By
            default all are equal. 0 is for dimensions without halos, such as the batch.
        host: the name of this rank's host, or of whatever else its neighbors should share, such as a switch. By default
            MPI's name of the processor, or what ``DISTDL_HOSTS`` says.

    Returns:
        The partition: the same workers in the same order on all ranks.

    Raises:
        ValueError: on every rank, if a shape or weights do not fit, or if the ranks' values differ.
        TypeError: on every rank, if P_world is not a partition, or the other arguments have other types.

    Example:
        >>> P_x = distdl.arrange(distdl.Partition(), [1, 1, 4, 4, 4], weights=[0, 0, 1, 1, 1])

    Collective over all ranks of the communicator that P_world comes from; for a sub-grid, over its workers.
    """
    options: dict[str, object] = {}
    name = b""
    with constructing("arrange", {"P_world": P_world}, options) as (grid,):
        extents = [index(extent) for extent in shape]
        bytes_along = [1.0] * len(extents) if weights is None else [float(weight) for weight in weights]
        options |= {"shape": extents, "weights": bytes_along}
        if any(extent < 1 for extent in extents) or (grid.known and math.prod(extents) > grid.size):
            raise ValueError(
                f"arrange: shape {extents} on {grid.size} workers; every extent must be at least 1 and their product "
                f"at most {grid.size}"
            )
        if len(bytes_along) != len(extents) or not all(0 <= weight < math.inf for weight in bytes_along):
            raise ValueError(
                f"arrange: weights {bytes_along} for a shape of {len(extents)} dimensions; there has to be a number "
                "for each, at least 0"
            )
        if not isinstance(host, str | None):
            raise TypeError(f"arrange: host={host!r}; it has to be the name of this rank's host")
        name = b"" if host is None else host.encode(errors="surrogatepass")
    if not grid.known:
        return Partition.of_grid(Grid.unknown(extents))
    everyone = grid.constructing_ranks()
    exchange = everyone.host_exchange()
    if host is None and exchange.spans_hosts:
        name = b"%d" % exchange.host
    names = dict(zip(everyone.ranks, exchange.gather(name), strict=True))
    order = order_on_hosts(extents, [names[rank] for rank in grid.ranks], bytes_along)
    origin = P_world if isinstance(P_world, Partition) else Partition.of_grid(grid)
    return derived_partition(origin, grid.related([grid.ranks[worker] for worker in order], extents))
