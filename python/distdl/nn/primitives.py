"""The primitives as layers: how distributed tensors move. Each is a linear operator; its backward is its adjoint.

They have no parameters. Constructing one is collective over the communicator that its partitions come from, calling one
over the ranks of its partitions. What is wrong on one rank raises the same exception on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from distdl import operators
from distdl.collective.construction import PartitionLike, constructor
from distdl.nn.module import Module
from distdl.operators.constructors import HaloWidths
from distdl.operators.dispatch import Operator, Started
from distdl.operators.halo_in_room import HaloInRoom

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


class _Primitive(Module):
    """A layer around one operator of the C++ core, which agrees on the structure by itself.

    ``layer(x)`` is ``layer.wait(layer.start(x))``.
    """

    _distdl_sets_up = False

    def __init__(self, operator: Operator | HaloInRoom, description: str) -> None:
        super().__init__()
        self._operator = operator
        self._description = description

    def __call__(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Call the layer, as ``torch.nn.Module`` does."""
        try:
            return super().__call__(*args, **kwargs)
        except TypeError:
            self._distdl_check_arguments(args, kwargs)
            raise

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the operator. Collective over the ranks of its partitions."""
        return self._operator(input)

    def _distdl_refuse(self, problem: Exception) -> None:
        self._operator.refuse(problem)

    def start(self, input: torch.Tensor) -> Started:
        """Begin to apply the operator, and return at once what :meth:`wait` takes.

        The data travels while Python and torch compute something else. In the backward pass the roles are swapped: the
        adjoint's messages travel while torch goes back through what was computed between start and wait. Several calls
        may be under way; all ranks have to start them in the same order. The input must not be written before the wait.

        Collective over the ranks of the partitions, and raises what a call raises.
        """
        return self._operator.start(input)

    def wait(self, started: Started) -> torch.Tensor:
        """The result of a call that was started. Each start needs its wait; no other rank has to call it.

        Raises:
            RuntimeError: if it was waited for before, or the input was written since :meth:`start`. A call that was
                started and then dropped raises at the next call of any operator, on all of its ranks.
            TypeError, ValueError: if nothing or another layer started it.
        """
        if not hasattr(started, "wait"):
            raise TypeError(f"{type(self).__name__}: wait() was passed {started!r}, which is not what start() returned")
        if started.name not in (self._operator.name, "Clone"):
            raise ValueError(f"{type(self).__name__}: wait() was passed a start of {started.name}")
        return started.wait()

    def extra_repr(self) -> str:
        """Partitions and options."""
        return self._description

    def __deepcopy__(self, memo: dict[int, object]) -> _Primitive:
        return self  # without parameters, a copy would be the same operator


class Broadcast(_Primitive):
    r"""Copies each worker's tensor from P_x to all workers of P_y that match it.

    In each dimension the extents of P_x and P_y must be equal, or that of P_x 1; P_x is extended to the left with ones.
    The adjoint is :class:`SumReduce`.

    Args:
        P_x: the partition of the input.
        P_y: the partition of the output.
        transpose_src: read P_x with its dimensions reversed.
        transpose_dest: read P_y with its dimensions reversed.
        preserve_batch: zero-volume results have the input's first dimension.

    Shape:
        On workers of P_x any tensor, of one dtype; on all other ranks a zero-volume tensor. On workers of P_y the copy;
        on other ranks zero volume.

    Raises:
        ValueError: on all ranks, if the partitions do not match, or the input is not as described.
        TypeError: on all ranks, if a rank passes no tensor, or tensors differ in dtype.

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
        super().__init__(operator, f"{P_x}, {P_y}")


class SumReduce(_Primitive):
    r"""Sums the tensors of all workers of P_x that match a worker of P_y, on that worker.

    In each dimension the extents of P_x and P_y must be equal, or that of P_y 1; P_y is extended to the left with ones.
    The adjoint is :class:`Broadcast`. The sum of bools is their logical or; half, bfloat16 and 8-bit floats are summed
    in float32.

    Args:
        P_x: the partition of the input.
        P_y: the partition of the output.
        transpose_src: read P_x with its dimensions reversed.
        transpose_dest: read P_y with its dimensions reversed.
        preserve_batch: zero-volume results have the input's first dimension.

    Shape:
        On workers of P_x any tensor, of one dtype, of equal shapes where they are summed; on all other ranks a
        zero-volume tensor. On workers of P_y the sum; on other ranks zero volume.

    Raises:
        ValueError, TypeError: as :class:`Broadcast` does.
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
        super().__init__(operator, f"{P_x}, {P_y}")


class AllSumReduce(_Primitive):
    r"""Sums over the workers along some axes of P_x; all of them receive the sum. It is its own adjoint.

    Args:
        P_x: the partition of input and output.
        axes_reduce: the axes along which to sum; or
        axes_keep: those along which not to.

    Shape:
        Tensors of equal shapes along the axes; the same shape comes out.

    Raises:
        ValueError, TypeError: as :class:`Broadcast` does, and if not exactly one of the axes arguments is given.
    """

    @constructor
    def __init__(
        self, P_x: PartitionLike, axes_reduce: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
    ) -> None:
        super().__init__(operators.all_sum_reduce(P_x, axes_reduce, axes_keep), f"{P_x}")


class AllGather(_Primitive):
    r"""Puts the blocks of the workers along some axes of P_x together; all of them receive the result.

    The adjoint is :class:`ReduceScatter`.

    Args:
        P_x: the partition of the input, with as many dimensions as the tensor.
        axes_all_gather: the axes along which to gather; or
        axes_keep: those along which not to.

    Shape:
        A block of a tensor, balanced or not; along the axes the whole extent comes out.

    Raises:
        ValueError, TypeError: as :class:`Broadcast` does, and if not exactly one of the axes arguments is given.
    """

    @constructor
    def __init__(
        self, P_x: PartitionLike, axes_all_gather: Iterable[int] | None = None, axes_keep: Iterable[int] | None = None
    ) -> None:
        super().__init__(operators.all_gather(P_x, axes_all_gather, axes_keep), f"{P_x}")


class ReduceScatter(_Primitive):
    r"""Sums over the workers along some axes of P_x; each receives its balanced block of the sum.

    The adjoint is :class:`AllGather`.

    Args:
        P_x: the partition of the output, with as many dimensions as the tensor.
        axes_reduce_scatter: the axes along which to sum and to scatter; or
        axes_keep: those along which not to.

    Shape:
        Tensors of equal shapes along the axes; the balanced blocks of that extent come out.

    Raises:
        ValueError, TypeError: as :class:`Broadcast` does, and if not exactly one of the axes arguments is given.
    """

    @constructor
    def __init__(
        self,
        P_x: PartitionLike,
        axes_reduce_scatter: Iterable[int] | None = None,
        axes_keep: Iterable[int] | None = None,
    ) -> None:
        super().__init__(operators.reduce_scatter(P_x, axes_reduce_scatter, axes_keep), f"{P_x}")


class Repartition(_Primitive):
    r"""Moves a tensor from any blocks on P_x to the balanced blocks on P_y: a scatter, a gather, an all-to-all.

    The adjoint moves it back. To the same partition it balances the blocks.

    Args:
        P_x: the partition of the input, with as many dimensions as the tensor.
        P_y: the partition of the output, with as many dimensions as the tensor.
        preserve_batch: zero-volume results have the input's first dimension.

    Shape:
        On workers of P_x a block, balanced or not; on all other ranks zero volume. On workers of P_y a balanced block
        (the first n mod p of p workers along a dimension of n hold one element more); on other ranks zero volume.

    Raises:
        ValueError, TypeError: as :class:`Broadcast` does, and if the numbers of dimensions differ.
    """

    @constructor
    def __init__(self, P_x: PartitionLike, P_y: PartitionLike, preserve_batch: bool = True) -> None:
        super().__init__(operators.repartition(P_x, P_y, preserve_batch), f"{P_x}, {P_y}")


DistributedTranspose = Repartition


class HaloExchange(_Primitive):
    r"""Grows each worker's block by a halo of what its neighbors hold.

    Halos may be wider than the neighbor's whole block: they come from as many workers as it takes. Beyond the tensor
    they wrap in periodic dimensions and hold ``fill_value`` in others. Negative widths cut away. The adjoint adds each
    halo's elements to their owner.

    Args:
        P_x: the partition of input and output, with as many dimensions as the tensor.
        halo: an int, or for each dimension an int or a pair (left, right). Each worker may want other widths.
        periodic: whether the tensor wraps: for all dimensions, or for each one.
        fill_value: what lies beyond the tensor.

    The four-argument form ``HaloExchange(P_x, halo_shape, recv_buffer_shape, send_buffer_shape)`` takes a tensor that
    already has room for its halos, [dim, 2] widths on each rank: the room, what of it is received, and what is sent.
    What is not received keeps its values.

    Shape:
        A block comes in, the block grown by its halo goes out; of equal shapes in the four-argument form.

    Raises:
        ValueError, TypeError: as :class:`Broadcast` does, and if widths do not fit the partition or each other.
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
        super().__init__(operator, f"{P_x}, halo={halo}")
