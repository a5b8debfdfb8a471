"""Partitions: ordered sets of ranks with a Cartesian shape, on which the blocks of a tensor live.

Every rank that takes part in the creation of a partition knows its shape and ranks, also outside of its workers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from mpi4py import MPI

from distdl import _core
from distdl.partitions.comparison import agreed, compare, raise_together
from distdl.partitions.grid import Grid

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import ArrayLike, NDArray

    IntArray = NDArray[np.int64]
    Array = NDArray[np.generic]


def _raise_on_partition(method: str, error: Exception, arguments: tuple[object, ...]) -> None:
    """Raise an error in a method's arguments on all workers of its partition."""
    grid = next((argument.grid for argument in arguments if isinstance(argument, Partition)), Grid.unknown())
    if method == "create_partition_union":  # collective over more ranks than the partition's workers
        voters = grid.constructing_ranks()
    else:
        voters = grid.line(grid.ranks) if grid.active else Grid.unknown()
    compare(method, method, voters, error, {}, {})


_collective = raise_together(_raise_on_partition)  # for methods that are collective over the partition


class Partition:
    """The ranks of an MPI communicator, and the partitions made from them.

    Args:
        comm: an mpi4py intracommunicator. A ``Cartcomm`` keeps its shape; other communicators of n ranks become the
            partition [n]; ``COMM_NULL`` becomes an inactive partition of unknown shape.

    Raises:
        TypeError: if ``comm`` is not an mpi4py intracommunicator.
        RuntimeError: if MPI is not initialized, or was finalized.

    Attributes:
        device: the torch device on which the rank computes.
        comm: the mpi4py communicator of the workers, which must not be freed; ``MPI.COMM_NULL`` on all other ranks.

    Constructing takes no communication. All ranks of ``comm`` have to make all partitions and layers that come from it,
    in the same order. A separate program on some of the ranks needs its communicator.
    """

    device: torch.device = torch.device("cpu")

    def __init__(self, comm: MPI.Comm = MPI.COMM_WORLD) -> None:
        if not isinstance(comm, MPI.Comm) or isinstance(comm, MPI.Intercomm):
            raise TypeError(f"Partition: comm is a {type(comm).__name__}; it has to be an mpi4py intracommunicator")
        self.comm: MPI.Comm = comm
        self.grid = Grid.unknown() if comm == MPI.COMM_NULL else Grid.of(comm)

    @classmethod
    def of_grid(cls, grid: Grid, like: Partition | Grid | MPI.Comm = MPI.COMM_NULL) -> Self:
        """The partition of a grid, with the communicator and the device of ``like``. Takes no communication."""
        partition = cls.__new__(cls)
        partition.grid, partition.comm = grid, MPI.COMM_NULL
        if isinstance(like, Partition):
            partition.comm, partition.device = like.comm, like.device
        elif isinstance(like, MPI.Comm):
            partition.comm = like
        return partition

    def _derived(self, grid: Grid, cartesian: bool = True) -> Self:
        """The partition of a grid, with a communicator. Collective over the grid's workers."""
        comm = grid.host_exchange().view(list(grid.shape) if cartesian else []) if grid.active else MPI.COMM_NULL
        partition = type(self).of_grid(grid, comm)
        partition.device = self.device
        return partition

    # Properties

    @property
    def shape(self) -> IntArray:
        """The number of workers along each dimension."""
        return np.array(self.grid.shape, dtype=np.int64)

    @property
    def dim(self) -> int:
        """The number of dimensions."""
        return self.grid.dim

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.grid.size

    @property
    def active(self) -> bool:
        """Whether this rank is one of the workers."""
        return self.grid.active

    @property
    def rank(self) -> int:
        """This rank's number among the workers; ``MPI.PROC_NULL`` if it is not a worker."""
        return self.grid.rank

    @property
    def ranks(self) -> tuple[int, ...]:
        """The workers, in order, as ranks of the communicator that the partition comes from."""
        return self.grid.ranks

    @property
    def index(self) -> IntArray | None:
        """This worker's place in the grid; None on ranks outside of the partition."""
        return self.cartesian_index(self.rank) if self.active else None

    @property
    def _comm(self) -> MPI.Comm:
        return self.comm

    def cartesian_index(self, rank: int) -> IntArray:
        """The place of worker ``rank`` in the grid, row-major. Raises ValueError for a rank that is not a worker."""
        return np.array(self.grid.index(rank), dtype=np.int64)

    def neighbor_ranks(self, rank: int) -> list[tuple[int, int]]:
        """(left, right) neighbor of worker ``rank`` in each dimension; ``MPI.PROC_NULL`` at the edges."""
        return self.grid.neighbors(rank)

    def slices(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """The slices of this rank's block of a whole tensor: ``whole[P.slices(whole.shape)]``.

        Args:
            shape: the shape of the whole tensor. Dimension d is cut into balanced blocks over dimension d of the
                partition; dimensions that the partition lacks are not cut.

        Returns:
            A slice with a start and a stop for each dimension; empty slices on ranks outside of the partition.

        Raises:
            ValueError: if the partition has more dimensions than the tensor, or an extent is negative.

        No other rank has to call it.
        """
        extents = [index(extent) for extent in shape]
        if self.dim > len(extents) or any(extent < 0 for extent in extents):
            raise ValueError(
                f"slices: a tensor of shape {extents} on {self}; it has to have at least {self.dim} dimensions, with "
                "extents of at least 0"
            )
        if not self.active:
            return (slice(0, 0),) * len(extents)
        workers = self.grid.shape + (1,) * (len(extents) - self.dim)
        place = self.grid.place + (0,) * (len(extents) - self.dim)
        return tuple(slice(*_core.balanced_block(n, p, i)) for n, p, i in zip(extents, workers, place, strict=True))

    def _identity(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.grid.world_ranks(), self.grid.shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return repr(self.grid)

    def __deepcopy__(self, memo: dict[int, object]) -> Partition:
        return self  # a description of ranks, which a copied layer shares

    def __reduce__(self) -> str | tuple[object, ...]:
        return self.grid.__reduce__()

    # Partitions from partitions

    @_collective
    def create_partition_inclusive(self, ranks: Sequence[int]) -> Partition:
        """The partition of some workers, in this order.

        Args:
            ranks: distinct worker numbers of this partition.

        Returns:
            A 1-d partition; inactive on all other ranks.

        Raises:
            ValueError: on every worker, if a number is out of range or repeated, or if the workers' numbers differ.

        Collective over this partition.
        """
        if not self.grid.known:
            return Partition.of_grid(Grid.unknown())
        chosen: list[int] = []
        with agreed("create_partition_inclusive", self.grid, lambda: f"ranks {chosen}"):
            chosen.extend(map(index, ranks))
            if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= rank < self.size for rank in chosen):
                raise ValueError(
                    f"create_partition_inclusive: ranks {chosen} of a partition of {self.size}; they must be distinct "
                    f"numbers from 0 to {self.size - 1}, at least one"
                )
        return self._derived(self.grid.line([self.ranks[rank] for rank in chosen]), cartesian=False)

    @_collective
    def create_cartesian_topology_partition(self, shape: Sequence[int]) -> Partition:
        """The same workers as a grid, row-major.

        Args:
            shape: the extents, whose product is at most the number of workers. Further workers become inactive.

        Raises:
            ValueError: on every worker, if a shape does not fit, or if the workers' shapes differ.

        Collective over this partition.
        """
        extents: list[int] = []
        with agreed("create_cartesian_topology_partition", self.grid, lambda: f"shape {extents}"):
            extents.extend(map(index, shape))
            if any(extent < 1 for extent in extents) or (self.grid.known and math.prod(extents) > self.size):
                raise ValueError(
                    f"create_cartesian_topology_partition: shape {extents} on {self.size} workers; every extent must "
                    f"be at least 1 and their product at most {self.size}"
                )
        if not self.grid.known:
            return Partition.of_grid(Grid.unknown(extents))
        return self._derived(self.grid.related(self.ranks[: math.prod(extents)], extents))

    @_collective
    def create_cartesian_subtopology_partition(self, keep: Sequence[bool]) -> Partition:
        """The sub-grid along the kept dimensions that contains this worker; inactive outside of this partition.

        The workers of a sub-grid construct and call its layers without the workers of other sub-grids.

        Args:
            keep: for each dimension whether it is kept.

        Raises:
            ValueError: on every worker, if ``keep`` and the shape differ in length, or if the workers' values differ.

        Collective over this partition.
        """
        if not self.grid.known:
            return Partition.of_grid(Grid.unknown())
        kept: list[bool] = []
        with agreed("create_cartesian_subtopology_partition", self.grid, lambda: f"keep {kept}"):
            kept.extend(bool(k) for k in keep)
            if len(kept) != self.dim:
                raise ValueError(
                    f"create_cartesian_subtopology_partition: keep {kept} has {len(kept)} values; the partition has "
                    f"{self.dim} dimensions"
                )
        axes = [d for d, k in enumerate(kept) if k]
        shape = [self.grid.shape[d] for d in axes]
        if not self.active:
            return Partition.of_grid(Grid.unknown(shape))
        ranks = self.grid.side_by_side(self.grid.place, axes)
        # Workers of other sub-grids do not know this sub-grid, so only its workers construct on it.
        return self._derived(replace(self.grid, ranks=ranks, shape=tuple(shape), constructors=ranks))

    @_collective
    def create_partition_union(self, other: Partition) -> Partition:
        """The workers of both, this partition's first, as a 1-d partition.

        Raises:
            ValueError: on every rank that takes part, if the partitions come from different communicators; or if this
                partition is a sub-grid and ``other`` has workers outside of it.

        Collective over the communicator that both come from; for a sub-grid, over its workers.
        """
        if not self.grid.known and not (isinstance(other, Partition) and other.grid.known):
            return Partition.of_grid(Grid.unknown())
        union: list[int] = []
        all_ranks = self.grid.constructing_ranks()
        with agreed("create_partition_union", all_ranks, lambda: f"workers {list(self.ranks)} and {union}"):
            if not isinstance(other, Partition) or other.grid.root != self.grid.root:
                raise ValueError(f"create_partition_union: {self} and {other} do not come from the same communicator")
            if not set(other.ranks) <= set(self.grid.constructors):
                raise ValueError(
                    f"create_partition_union: {self} is a sub-grid, of which only its workers know; {other} has "
                    "workers outside of it"
                )
            union.extend(dict.fromkeys(self.ranks + other.ranks))
        return self._derived(self.grid.line(union), cartesian=False)

    # Small data for scripts

    @_collective
    def broadcast_data(
        self, data: ArrayLike | None = None, root: int = 0, P_data: Partition | None = None
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
        if not self.active:
            return None
        data_here, sender = b"", -1
        with agreed("broadcast_data", self.grid, lambda: f"from rank {sender}"):
            if not isinstance(source, Partition):
                raise TypeError(f"broadcast_data: P_data is a {type(source).__name__}; it has to be a distdl.Partition")
            if not 0 <= root < source.size or source.ranks[root] not in self.ranks:
                raise ValueError(f"broadcast_data: worker {root} of {source} is not a worker of {self}")
            sender = source.ranks[root]
            data_here = _to_bytes(data) if source.rank == root else b""
        return _from_bytes(self.grid.gather(data_here)[self.ranks.index(sender)])

    @_collective
    def allgather_data(self, data: ArrayLike) -> list[Array]:
        """Every worker's small array, in worker order; an empty list on ranks outside of this partition.

        Args:
            data: an argument of ``numpy.asarray`` without Python objects, of any shape.

        Raises:
            ValueError: on every worker, if ``data`` holds Python objects.

        Collective over this partition.
        """
        if not self.active:
            return []
        data_here = b""
        with agreed("allgather_data", self.grid, lambda: ""):
            data_here = _to_bytes(data)
        return [_from_bytes(array) for array in self.grid.gather(data_here)]

    @_collective
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
        if not self.active:
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

    @_collective
    def print_sequential(self, text: object) -> None:
        """Print every worker's text in worker order, on the first worker. Collective over this partition."""
        if not self.active:
            return
        line = b""
        with agreed("print_sequential", self.grid, lambda: ""):
            line = str(text).encode()
        texts = self.grid.gather(line)
        if self.rank == 0:
            print("\n".join(line.decode() for line in texts), flush=True)

    # Early release

    def deactivate(self) -> None:
        """Forget the ranks: the partition becomes inactive on this rank. Shared communicators stay cached."""
        self.grid, self.comm = Grid.unknown(self.grid.shape), MPI.COMM_NULL

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.deactivate()


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
