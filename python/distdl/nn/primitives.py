"""Primitives as layers: linear operators that move distributed tensors. The backward pass is the adjoint.

Primitives have no parameters. Constructing is collective over the partitions' parent communicator, calling over the
partitions. An error on one rank raises the same exception on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distdl import operators
from distdl.nn.base.primitive import Primitive
from distdl.operators.constructors import HaloWidths
from distdl.operators.dispatch import Operator
from distdl.operators.halo_in_room import HaloInRoom
from distdl.partitions.construction import PartitionLike, constructor

__all__ = [
    "AllGather",
    "AllSumReduce",
    "Broadcast",
    "DistributedTranspose",
    "HaloExchange",
    "ReduceScatter",
    "Repartition",
    "SumReduce",
]


class Broadcast(Primitive):
    r"""Copies each worker's tensor from P_x to all workers of P_y that match it.

    In each dimension the extents of P_x and P_y must be equal, or the extent of P_x 1; P_x is extended to the left with
    ones. The adjoint is :class:`SumReduce`.

    Args:
        P_x: the partition of the input.
        P_y: the partition of the output.
        transpose_src: read P_x with its dimensions reversed.
        transpose_dest: read P_y with its dimensions reversed.
        preserve_batch: whether zero-volume results keep the input's first extent.

    Shape:
        Input: on workers of P_x tensors of any shape and of one dtype. Result: on workers of P_y the copy, of the same
        shape. Zero volume on all other ranks.

    Raises:
        ValueError: on all ranks, if the partitions do not match, or the input is not as described.
        TypeError: on all ranks, if the input of a rank is not a tensor, or the inputs differ in dtype.

    Source: R. J. Hewett, T. J. Grady, "A Linear Algebraic Approach to Model Parallelism in Deep Learning" (2020).
    """

    @constructor
    def __init__(
        self,
        P_x: PartitionLike,
        P_y: PartitionLike,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        operator = operators.broadcast(P_x, P_y, transpose_src, transpose_dest, preserve_batch)
        super().__init__(operator, f"{P_x}, {P_y}", P_x)


class SumReduce(Primitive):
    r"""Sums tensors on P_y: each worker of P_y receives the sum over the workers of P_x that match it.

    In each dimension the extents of P_x and P_y must be equal, or the extent of P_y 1; P_y is extended to the left with
    ones. The adjoint is :class:`Broadcast`. The sum of bools is their logical or; half, bfloat16 and 8-bit floats are
    summed in float32.

    Args:
        P_x: the partition of the input.
        P_y: the partition of the output.
        transpose_src: read P_x with its dimensions reversed.
        transpose_dest: read P_y with its dimensions reversed.
        preserve_batch: whether zero-volume results keep the input's first extent.

    Shape:
        Input: on workers of P_x tensors of one dtype, with equal shapes in each sum. Result: on workers of P_y the sum,
        of the same shape. Zero volume on all other ranks.

    Raises:
        ValueError, TypeError: as in :class:`Broadcast`.
    """

    @constructor
    def __init__(
        self,
        P_x: PartitionLike,
        P_y: PartitionLike,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        operator = operators.sum_reduce(P_x, P_y, transpose_src, transpose_dest, preserve_batch)
        super().__init__(operator, f"{P_x}, {P_y}", P_x, P_y)


class AllSumReduce(Primitive):
    r"""Sums over the workers along some axes of P_x; all of them receive the sum. It is its own adjoint.

    Args:
        P_x: the partition of input and output.
        axes_reduce: the axes along which to sum; or
        axes_keep: the axes along which not to sum.

    Shape:
        Tensors of equal shapes along the axes; the sum has the same shape.

    Raises:
        ValueError, TypeError: as in :class:`Broadcast`, and unless exactly one axes argument is passed.
    """

    @constructor
    def __init__(
        self, P_x: PartitionLike, axes_reduce: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
    ) -> None:
        super().__init__(operators.all_sum_reduce(P_x, axes_reduce, axes_keep), f"{P_x}", P_x)


class AllGather(Primitive):
    r"""Gathers the blocks of the workers along some axes of P_x; all of them receive the result.

    The adjoint is :class:`ReduceScatter`.

    Args:
        P_x: the partition of the input, with as many dimensions as the tensor.
        axes_all_gather: the axes along which to gather; or
        axes_keep: the axes along which not to gather.

    Shape:
        A block of a tensor, balanced or not; the result has the tensor's whole extent along the axes.

    Raises:
        ValueError, TypeError: as in :class:`Broadcast`, and unless exactly one axes argument is passed.
    """

    @constructor
    def __init__(
        self, P_x: PartitionLike, axes_all_gather: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
    ) -> None:
        super().__init__(operators.all_gather(P_x, axes_all_gather, axes_keep), f"{P_x}", P_x)


class ReduceScatter(Primitive):
    r"""Sums over the workers along some axes of P_x; each receives its balanced block of the sum.

    The adjoint is :class:`AllGather`.

    Args:
        P_x: the partition of the output, with as many dimensions as the tensor.
        axes_reduce_scatter: the axes along which to sum and scatter; or
        axes_keep: the axes along which not to.

    Shape:
        Tensors of equal shapes along the axes; the result is this worker's balanced block of the sum along the axes.

    Raises:
        ValueError, TypeError: as in :class:`Broadcast`, and unless exactly one axes argument is passed.
    """

    @constructor
    def __init__(
        self,
        P_x: PartitionLike,
        axes_reduce_scatter: Iterable[int] | None = None,
        axes_keep: Iterable[int] | None = None,
    ) -> None:
        super().__init__(operators.reduce_scatter(P_x, axes_reduce_scatter, axes_keep), f"{P_x}", P_x, P_x)


class Repartition(Primitive):
    r"""Moves a tensor from any blocks on P_x to the balanced blocks on P_y: a scatter, a gather, an all-to-all.

    The adjoint moves it back. From a partition to itself, a repartition balances the blocks.

    Args:
        P_x: the partition of the input, with as many dimensions as the tensor.
        P_y: the partition of the output, with as many dimensions as the tensor.
        preserve_batch: whether zero-volume results keep the input's first extent.

    Shape:
        Input: on workers of P_x a block, balanced or not. Result: on workers of P_y a balanced block (of p workers
        along a dimension of n elements, the first n mod p hold one element more). Zero volume on all other ranks.

    Raises:
        ValueError, TypeError: as in :class:`Broadcast`, and if the numbers of dimensions differ.
    """

    @constructor
    def __init__(self, P_x: PartitionLike, P_y: PartitionLike, preserve_batch: bool = True) -> None:
        super().__init__(operators.repartition(P_x, P_y, preserve_batch), f"{P_x}, {P_y}", P_x, P_y)


DistributedTranspose = Repartition


class HaloExchange(Primitive):
    r"""Grows each worker's block by a halo of its neighbors' elements.

    A halo wider than the neighbor's whole block comes from several workers. Beyond the tensor, halos wrap around in
    periodic dimensions and hold ``fill_value`` in others. Negative widths remove elements. The adjoint adds each halo's
    elements to their owner.

    Args:
        P_x: the partition of input and output, with the dimensions of the tensor.
        halo: the number of elements: an int, or for each dimension an int or a pair (left, right). Widths may differ
            from worker to worker.
        periodic: whether the tensor wraps around: a bool for all dimensions, or a bool for each dimension.
        fill_value: the value of elements beyond the tensor.
        recv_buffer_shape, send_buffer_shape: see below.

    The four-argument form ``HaloExchange(P_x, halo_shape, recv_buffer_shape, send_buffer_shape)`` takes a tensor with
    room for halos. The arguments are [dim, 2] widths on each rank: of the room, the received halos, and the sent
    slices. The remaining room keeps its values.

    Shape:
        A block; the result is the block grown by its halo. In the four-argument form both have the same shape.

    Raises:
        ValueError, TypeError: as in :class:`Broadcast`, and if widths do not match the partition or each other.
    """

    @constructor
    def __init__(
        self,
        P_x: PartitionLike,
        halo: HaloWidths,
        recv_buffer_shape: HaloWidths | None = None,
        send_buffer_shape: HaloWidths | None = None,
        *,
        periodic: bool | Sequence[bool] = False,
        fill_value: float = 0.0,
    ) -> None:
        operator: Operator | HaloInRoom
        if recv_buffer_shape is None:
            operator = operators.halo_exchange(P_x, halo, periodic, fill_value)
        else:
            operator = HaloInRoom(P_x, halo, recv_buffer_shape, send_buffer_shape)
        super().__init__(operator, f"{P_x}, halo={halo}", P_x, P_x)
