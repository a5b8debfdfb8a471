"""Small arrays between the workers of a partition, for scripts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from distdl import _core
from distdl.partitions.comparison import agreed, compare
from distdl.partitions.grid import Grid
from distdl.partitions.signatures import raise_together

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.generic]


def _raise_on_partition(method: str, error: Exception, arguments: tuple[object, ...]) -> None:
    """Raise an error in a method's arguments on all workers of its partition."""
    grid = next((argument.grid for argument in arguments if isinstance(argument, SmallData)), Grid.unknown())
    if method == "create_partition_union":  # collective over more ranks than the partition's workers
        voters = grid.constructing_ranks()
    else:
        voters = grid.line(grid.ranks) if grid.active else Grid.unknown()
    compare(method, method, voters, error, {}, {})


collective_method = raise_together(_raise_on_partition)
"""A decorator for methods that are collective over the partition."""


class SmallData:
    """The part of a partition that sends small arrays and texts.

    Attributes:
        grid: the ranks of the partition.
    """

    grid: Grid

    @collective_method
    def broadcast_data(
        self, data: ArrayLike | None = None, root: int = 0, P_data: SmallData | None = None
    ) -> Array | None:
        """A small array from one worker to all workers of this partition.

        Args:
            data: an argument of ``numpy.asarray`` without Python objects; read on the sending worker only.
            root: the number of the sending worker in P_data.
            P_data: a partition whose worker ``root`` belongs to this partition; this partition by default.

        Returns:
            The array; None on ranks outside of this partition.

        Raises:
            ValueError: on every worker, if the sender is not a worker, if the workers name different senders, or if
                ``data`` holds Python objects.
            TypeError: on every worker, if P_data is not a partition.

        Collective over this partition.
        """
        source = self if P_data is None else P_data
        if not self.grid.active:
            return None
        data_here, sender = b"", -1
        with agreed("broadcast_data", self.grid, lambda: f"from rank {sender}"):
            if not isinstance(source, SmallData):
                raise TypeError(f"broadcast_data: P_data is a {type(source).__name__}; it has to be a distdl.Partition")
            if not 0 <= root < source.grid.size or source.grid.ranks[root] not in self.grid.ranks:
                raise ValueError(f"broadcast_data: worker {root} of {source} is not a worker of {self}")
            sender = source.grid.ranks[root]
            data_here = _to_bytes(data) if source.grid.rank == root else b""
        return _from_bytes(self.grid.gather(data_here)[self.grid.ranks.index(sender)])

    @collective_method
    def allgather_data(self, data: ArrayLike) -> list[Array]:
        """Every worker's small array, in worker order; an empty list on ranks outside of this partition.

        Args:
            data: an argument of ``numpy.asarray`` without Python objects, of any shape.

        Raises:
            ValueError: on every worker, if ``data`` holds Python objects.

        Collective over this partition.
        """
        if not self.grid.active:
            return []
        data_here = b""
        with agreed("allgather_data", self.grid, lambda: ""):
            data_here = _to_bytes(data)
        return [_from_bytes(array) for array in self.grid.gather(data_here)]

    @collective_method
    def allreduce_data(self, data: ArrayLike, op: MPI.Op = MPI.SUM) -> Array | None:
        """The reduction of every worker's small array; None on ranks outside of this partition.

        Args:
            data: numbers of the same dtype and shape on every worker.
            op: an operation of mpi4py; the sum by default. Sums of integers wrap around, as in NumPy.

        Raises:
            ValueError: on every worker, if dtype, shape or ``op`` differ, or ``data`` holds Python objects.
            TypeError: on every worker, if ``op`` is not an operation of mpi4py.

        Collective over this partition.
        """
        if not self.grid.active:
            return None
        array: Array = np.empty(0)
        with agreed("allreduce_data", self.grid, lambda: f"{array.dtype} of shape {list(array.shape)}, {_op_name(op)}"):
            array = np.asarray(data, order="C")
            if not isinstance(op, MPI.Op):
                raise TypeError(f"allreduce_data: op={op!r}; it has to be an operation of mpi4py, such as MPI.SUM")
            if array.dtype.hasobject:
                raise ValueError(f"allreduce_data: data is no array of numbers, but a {type(data).__name__}")
        # In 64 bits, whose lowest bits are NumPy's sum: Open MPI's sums of 8 and 16 bits saturate.
        narrow = op == MPI.SUM and array.dtype.kind in "iu" and array.itemsize < 4
        sent = array.astype(np.int64) if narrow else array
        result = np.empty_like(sent)
        with _core.Waiting("allreduce_data"):
            self.grid.host_exchange().view([]).Allreduce(sent, result, op=op)
        return result.astype(array.dtype, copy=False)

    @collective_method
    def print_sequential(self, text: object) -> None:
        """Print every worker's text in worker order, on the first worker. Collective over this partition."""
        if not self.grid.active:
            return
        line = b""
        with agreed("print_sequential", self.grid, lambda: ""):
            line = str(text).encode()
        texts = self.grid.gather(line)
        if self.grid.rank == 0:
            print("\n".join(line.decode() for line in texts), flush=True)


def _op_name(op: MPI.Op) -> str:
    """The name of an operation, for ranks to compare; handles may differ."""
    names = ("SUM", "PROD", "MAX", "MIN", "MAXLOC", "MINLOC", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")
    return next((name for name in names if getattr(MPI, name) == op), "a user-defined operation")


def _to_bytes(data: ArrayLike | None) -> bytes:
    """An array in numpy's file format. Raises ValueError for Python objects."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(data), allow_pickle=False)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> Array:
    array: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return array
