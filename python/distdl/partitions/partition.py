"""Partitions: ordered sets of ranks with a Cartesian shape, on which the blocks of a tensor live.

Every rank that takes part in the creation of a partition knows its shape and ranks, also outside of its workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from mpi4py import MPI
from typing_extensions import Self

from distdl.partitions.comparison import agreed
from distdl.partitions.grid import Grid
from distdl.partitions.small_data import SmallData, collective_method

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


class _Numbers(np.ndarray[tuple[int], np.dtype[np.int64]]):
    """An array whose list prints as numbers: ``[2, 2]``, not ``[np.int64(2), np.int64(2)]``."""

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        return iter(self.tolist())


def _array_of(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64).view(_Numbers)


class Partition(SmallData):
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

    # Properties

    @property
    def shape(self) -> IntArray:
        """The number of workers along each dimension."""
        return _array_of(self.grid.shape)

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
        return _array_of(self.grid.index(rank))

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
        return self.grid.slices(shape)

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

    @collective_method
    def create_partition_inclusive(self, ranks: Sequence[int]) -> Partition:
        """The 1-d partition of some workers, in this order; inactive on all other ranks.

        Args:
            ranks: distinct worker numbers of this partition.

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
        return derived_partition(self, self.grid.line([self.ranks[rank] for rank in chosen]), cartesian=False)

    @collective_method
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
        return derived_partition(self, self.grid.related(self.ranks[: math.prod(extents)], extents))

    @collective_method
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
        return derived_partition(self, replace(self.grid, ranks=ranks, shape=tuple(shape), constructors=ranks))

    @collective_method
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
        return derived_partition(self, self.grid.line(union), cartesian=False)

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


AnyPartition = TypeVar("AnyPartition", bound=Partition)


def derived_partition(origin: AnyPartition, grid: Grid, cartesian: bool = True) -> AnyPartition:
    """The partition of a grid, with a communicator, and the device of the one that it is made from.

    Collective over the grid's workers.
    """
    comm = grid.host_exchange().view(list(grid.shape) if cartesian else []) if grid.active else MPI.COMM_NULL
    partition = type(origin).of_grid(grid, comm)
    partition.device = origin.device
    return partition
