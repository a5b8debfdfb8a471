"""Partitions as programs written for DistDL make them, and ask them for their ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from distdl.classic.config import operation_map
from distdl.partitions import partition
from distdl.partitions.grid import Grid

IntArray = NDArray[np.int64]
Array = NDArray[np.generic]
_Places = tuple[tuple[int, ...], dict[int, tuple[int, ...]]]


class MPIPartition(partition.Partition):
    """A partition without a Cartesian shape: inactive by default, and with a number for an index.

    Args:
        comm: the communicator of the workers; ``COMM_NULL`` on ranks that are none of them.
        group: the workers; with ``root`` also known to ranks outside.
        root: a communicator that has the workers and other ranks, all of which make this partition.
        device, requested_device: the device on which the rank computes.
        initialize_backend_comm: without effect; communicators are made when they are needed.
    """

    def __init__(
        self,
        comm: MPI.Comm = MPI.COMM_NULL,
        group: MPI.Group = MPI.GROUP_NULL,
        root: MPI.Comm | None = None,
        device: torch.device | str | None = None,
        requested_device: torch.device | str | None = None,
        initialize_backend_comm: bool = False,
    ) -> None:
        super().__init__(comm)
        self._take(comm, group, root)
        chosen = requested_device if device is None else device
        if chosen is not None:
            self.device = torch.device(chosen)

    def _take(self, comm: MPI.Comm, group: MPI.Group, root: MPI.Comm | None) -> None:
        """Count the ranks in ``root``, so that ranks outside know them, too."""
        if root is None or root == MPI.COMM_NULL or (comm == MPI.COMM_NULL and group == MPI.GROUP_NULL):
            return
        own = comm.Get_group() if group == MPI.GROUP_NULL else group
        everyone = root.Get_group()
        ranks = tuple(MPI.Group.Translate_ranks(own, list(range(own.Get_size())), everyone))
        everyone.Free()
        if own is not group:
            own.Free()
        shape = self.grid.shape if self.grid.known else (len(ranks),)
        whole = Grid.of(root)
        self.grid = Grid(root, ranks, shape, whole.constructors, whole.me, whole.world)

    def initialize_backend_comm(self) -> None:
        """Do nothing: communicators are made when they are needed."""

    def set_device(self, requested_device: torch.device | str | None = None) -> torch.device:
        """Choose the device on which the rank computes; the CPU by default."""
        self.device = torch.device("cpu" if requested_device is None else requested_device)
        return self.device

    @functools.cached_property
    def _group(self) -> MPI.Group:
        """The MPI group of the workers."""
        return self.comm.Get_group() if self.comm != MPI.COMM_NULL else MPI.GROUP_NULL

    @property
    def index(self) -> IntArray | None:
        """The rank, which is a number."""
        return self.rank if self.active else None  # type: ignore[return-value]

    # Partitions from partitions

    def _own(self, made: partition.Partition, kind: type[MPIPartition] | None = None) -> MPIPartition:
        derived = (kind or MPIPartition).of_grid(made.grid, made)
        derived.device = self.device
        return derived

    def create_partition_inclusive(self, ranks: Sequence[int], **backend: object) -> MPIPartition:
        """See :meth:`distdl.Partition.create_partition_inclusive`."""
        return self._own(super().create_partition_inclusive(ranks))

    def create_partition_union(self, other: partition.Partition, **backend: object) -> MPIPartition:
        """See :meth:`distdl.Partition.create_partition_union`."""
        return self._own(super().create_partition_union(other))

    def create_cartesian_topology_partition(self, shape: Sequence[int], **backend: object) -> MPICartesianPartition:
        """See :meth:`distdl.Partition.create_cartesian_topology_partition`."""
        made = self._own(super().create_cartesian_topology_partition(shape), MPICartesianPartition)
        assert isinstance(made, MPICartesianPartition)
        return made

    def create_broadcast_partition_to(
        self,
        P_dest: partition.Partition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        **backend: object,
    ) -> tuple[MPIPartition, MPIPartition]:
        """(P_send, P_recv): the workers to which this rank's data is broadcast, and those that receive with this rank.

        The sender comes first in both. They are inactive where this rank sends, or receives, nothing. It takes no
        communication.

        Raises:
            ValueError: if the partitions do not match: in each dimension the extent of the source must be 1 or that of
                the destination.
        """
        source, target = _places(self.grid, transpose_src), _places(P_dest.grid, transpose_dest)
        return self._among_groups(source, target, "create_broadcast_partition_to")

    def create_reduction_partition_to(
        self,
        P_dest: partition.Partition,
        transpose_src: bool = False,
        transpose_dest: bool = False,
        **backend: object,
    ) -> tuple[MPIPartition, MPIPartition]:
        """(P_send, P_recv): the workers whose data is summed with this rank's, and those whose sum this rank receives.

        The receiver comes first in both. As :meth:`create_broadcast_partition_to` otherwise, which it is in reverse.
        """
        source, target = _places(self.grid, transpose_src), _places(P_dest.grid, transpose_dest)
        P_recv, P_send = self._among_groups(target, source, "create_reduction_partition_to")
        return P_send, P_recv

    def create_allreduction_partition(self, axes_reduce: Iterable[int], **backend: object) -> MPIPartition:
        """The workers that differ from this one along these axes alone; inactive outside of this partition."""
        if not self.grid.active:
            return self._of(Grid.unknown())
        ranks = self.grid.side_by_side(self.grid.place, sorted(a % self.dim for a in axes_reduce))
        return self._of(self.grid.line(ranks))

    def _among_groups(self, few: _Places, many: _Places, what: str) -> tuple[MPIPartition, MPIPartition]:
        """(the group whose first rank this rank is, the group in which this rank is a member)."""
        (shape, places), (wide, members) = few, many
        shape = (1,) * (len(wide) - len(shape)) + shape
        if len(shape) != len(wide) or any(n not in (1, m) for n, m in zip(shape, wide, strict=True)):
            raise ValueError(f"{what}: shapes {list(shape)} and {list(wide)} do not match; extents must be 1 or equal")
        first, own = Grid.unknown(), Grid.unknown()
        for rank, place in places.items():
            place = (0,) * (len(wide) - len(place)) + place
            group = [
                other
                for other, at in members.items()
                if all(n == 1 or i == j for n, i, j in zip(shape, place, at, strict=True))
            ]
            line = self.grid.line((rank, *(other for other in group if other != rank)))
            first = line if rank == self.grid.me else first
            own = line if self.grid.me in group else own
        return self._of(first), self._of(own)

    def _of(self, grid: Grid) -> MPIPartition:
        derived = MPIPartition.of_grid(grid)
        derived.device = self.device
        return derived

    # Small data

    def allreduce_data(self, data: ArrayLike, op: MPI.Op | str = MPI.SUM, **backend: object) -> Array | None:
        """See :meth:`distdl.Partition.allreduce_data`; ``op`` may also be a name, such as "max"."""
        return super().allreduce_data(data, operation_map.get(op, op) if isinstance(op, str) else op)  # type: ignore[arg-type]


class MPICartesianPartition(MPIPartition):
    """A partition with a Cartesian shape.

    Args:
        comm: a communicator of the workers; ``COMM_NULL`` on ranks that are none of them.
        group, root: as in :class:`MPIPartition`.
        shape: the number of workers along each dimension; by default that of the communicator.
        device: the device on which the rank computes.
    """

    def __init__(
        self,
        comm: MPI.Comm = MPI.COMM_NULL,
        group: MPI.Group = MPI.GROUP_NULL,
        root: MPI.Comm | None = None,
        shape: Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(comm, group, root, device)
        if shape is not None:
            self.grid = self.grid.reshaped([int(n) for n in shape]) if self.grid.known else Grid.unknown(shape)

    @property
    def index(self) -> IntArray | None:
        """This worker's place in the grid; None on ranks outside of the partition."""
        return self.cartesian_index(self.rank) if self.active else None

    def create_cartesian_subtopology_partition(self, keep: Sequence[bool], **backend: object) -> Self:
        """See :meth:`distdl.Partition.create_cartesian_subtopology_partition`."""
        made = self._own(super().create_cartesian_subtopology_partition(keep), type(self))
        assert isinstance(made, type(self))
        return made


def _places(grid: Grid, transposed: bool) -> _Places:
    """The shape of a grid, and the place of each rank, both in reverse order if transposed."""
    step = -1 if transposed else 1
    return grid.shape[::step], {rank: grid.index(worker)[::step] for worker, rank in enumerate(grid.ranks)}


Partition = MPIPartition
