"""The operators that move tensors, constructed from partitions.

Each function checks that all ranks construct the same operator, and returns a callable: tensor in, tensor out.
Constructing is collective over the communicator that the partitions come from; calling, over the partitions' ranks.
"""

from distdl.operators.constructors import (
    all_gather,
    all_gather_among,
    all_sum_reduce,
    all_sum_reduce_among,
    broadcast,
    broadcast_among,
    halo_exchange,
    interval_exchange,
    reduce_scatter,
    reduce_scatter_among,
    repartition,
    replicate,
    sum_reduce,
)
from distdl.operators.dispatch import Operator, Started

__all__ = [
    "Operator",
    "Started",
    "all_gather",
    "all_gather_among",
    "all_sum_reduce",
    "all_sum_reduce_among",
    "broadcast",
    "broadcast_among",
    "halo_exchange",
    "interval_exchange",
    "reduce_scatter",
    "reduce_scatter_among",
    "repartition",
    "replicate",
    "sum_reduce",
]
