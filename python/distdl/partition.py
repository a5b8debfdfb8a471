"""Partitions: ordered sets of ranks with a Cartesian shape.

A partition describes on which ranks the blocks of a tensor live. It moves no data. Every rank that takes part in the
creation of a partition knows its shape and its ranks afterwards, whether it is one of them or not.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from mpi4py import MPI

from distdl._load import _core
from distdl.agreement import agreed, compare, telling
from distdl.structure import belongs_to_its_job

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


def _tell(what: str, error: Exception, given: tuple[Any, ...]) -> None:
    """Raise an error in the arguments of a method on all workers of its partition."""
    partition = next((one for one in given if isinstance(one, Partition)), Partition(MPI.COMM_NULL))
    everyone = what == "create_partition_union"  # is collective over more than the partition
    root = partition._root if partition.active or everyone else None
    compare(what, what, root, partition._voters if everyone else partition._ranks, error, {}, {})


_together = telling(_tell)  # for methods that are collective over the partition


class Partition:
    """The ranks of an MPI communicator, and the partitions made from them.

    Args:
        comm: an mpi4py intracommunicator. A ``Cartcomm`` brings its shape; any other communicator of n ranks becomes
            the 1-d partition [n]; ``COMM_NULL`` becomes an inactive partition of unknown shape.

    Raises:
        TypeError: if ``comm`` is not an mpi4py intracommunicator.

    Attributes:
        active: whether this rank is one of the workers.
        size: the number of workers.
        rank: this rank's number among the workers; ``MPI.PROC_NULL`` if it is none of them.
        device: the torch device on which the rank computes.
        comm: the mpi4py communicator of the workers; ``MPI.COMM_NULL`` on all other ranks. Shared: not to
            be freed.

    All ranks of ``comm`` have to make the partitions and layers that come from it, in the same order. A part of the
    ranks that runs a program of its own does so with a communicator of its own.
    """

    device: torch.device = torch.device("cpu")

    def __init__(self, comm: MPI.Comm = MPI.COMM_WORLD) -> None:
        if not isinstance(comm, MPI.Comm) or isinstance(comm, MPI.Intercomm):
            raise TypeError(f"Partition: comm is a {type(comm).__name__}; it has to be an mpi4py intracommunicator")
        if comm == MPI.COMM_NULL:
            self._describe(None, (), (), comm)
        else:
            ranks = tuple(range(comm.Get_size()))
            shape = tuple(comm.dims) if isinstance(comm, MPI.Cartcomm) else (len(ranks),)
            self._describe(comm, ranks, shape, comm)

    def _describe(
        self, root: MPI.Comm | None, ranks: Sequence[int], shape: Sequence[int], comm: MPI.Comm | None = None
    ) -> None:
        """Workers ``ranks`` of the communicator ``root``, from which all related partitions come."""
        self._root = root
        self._ranks = tuple(ranks)
        self._shape = tuple(int(extent) for extent in shape)
        self._voters: tuple[int, ...] = () if root is None else tuple(range(root.Get_size()))
        me = MPI.UNDEFINED if root is None else root.Get_rank()
        self.active = me in self._ranks
        self.rank: int = self._ranks.index(me) if self.active else MPI.PROC_NULL
        self.comm: MPI.Comm = MPI.COMM_NULL if comm is None or not self.active else comm

    @classmethod
    def _of(cls, root: MPI.Comm | None, ranks: Sequence[int], shape: Sequence[int]) -> Partition:
        """A partition without a communicator for users: made without any communication."""
        partition = cls.__new__(cls)
        partition._describe(root, ranks, shape)
        return partition

    def _related(self, ranks: Sequence[int], shape: Sequence[int]) -> Partition:
        """A partition of the same origin, without a communicator for users. Made without any communication."""
        partition = type(self)._of(self._root, ranks, shape)
        partition.device = self.device
        partition._voters = self._voters
        return partition

    def _line(self, ranks: Sequence[int]) -> Partition:
        """Ranks of the same origin as a 1-d partition. Made without any communication."""
        return self._related(ranks, (len(ranks),))

    def _derived(self, ranks: Sequence[int], shape: Sequence[int], cartesian: bool = True) -> Partition:
        """A partition of the same origin, with its communicator. Collective over ``ranks``."""
        partition = self._related(ranks, shape)
        if partition.active:
            partition.comm = partition._forum().view(list(partition._shape) if cartesian else [])
        return partition

    def _forum(self) -> _core.HostExchange:
        return _core.HostExchange(self._root, list(self._ranks))

    def _gather(self, mine: bytes) -> list[bytes]:
        """Every worker's bytes, in worker order. Collective over this partition, and unchecked."""
        return self._forum().gather(mine)

    def _workers(self) -> tuple[list[int], list[int]]:
        """Shape and ranks, as the C++ core takes partitions."""
        return list(self._shape), list(self._ranks)

    # What a partition is

    @property
    def shape(self) -> IntArray:
        """The number of workers along each dimension, known on every rank that took part in the creation."""
        return np.array(self._shape, dtype=np.int64)

    @property
    def dim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._ranks)

    @property
    def index(self) -> IntArray | None:
        """This worker's place in the grid; None on ranks outside of the partition."""
        return self.cartesian_index(self.rank) if self.active else None

    @property
    def _comm(self) -> MPI.Comm:
        return self.comm

    def cartesian_index(self, rank: int) -> IntArray:
        """The place of worker ``rank`` in the grid, row-major. Raises ValueError for a rank that is not a worker."""
        return np.array(_core.grid_index(list(self._shape), rank), dtype=np.int64)

    def neighbor_ranks(self, rank: int) -> list[tuple[int, int]]:
        """For each dimension the left and the right neighbor of worker ``rank``; ``MPI.PROC_NULL`` at the edges."""
        index = self.cartesian_index(rank)
        neighbors = []
        for d in range(self.dim):
            sides = []
            for step in (-1, 1):
                there = index.copy()
                there[d] += step
                inside = 0 <= there[d] < self._shape[d]
                sides.append(_core.grid_rank(list(self._shape), list(there)) if inside else MPI.PROC_NULL)
            neighbors.append((sides[0], sides[1]))
        return neighbors

    def _identity(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self._world_ranks(), self._shape

    def _world_ranks(self) -> tuple[int, ...]:
        if self._root is None:
            return ()
        mine, world = self._root.Get_group(), MPI.COMM_WORLD.Get_group()
        try:
            return tuple(MPI.Group.Translate_ranks(mine, list(self._ranks), world))
        finally:
            mine.Free()
            world.Free()

    def __eq__(self, other: object) -> bool:
        """Whether both have the same ranks in the same order and the same shape."""
        return isinstance(other, Partition) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        text = f"Partition(shape={list(self._shape)}, ranks={list(self._ranks)}"
        if self.active:
            return f"{text}, rank={self.rank}, index={[int(i) for i in self.cartesian_index(self.rank)]})"
        return text + ", inactive)"

    def _snapshot(self) -> Partition:
        """What a layer keeps: a partition that stays as it is when the user's is deactivated."""
        kept = Partition.__new__(type(self))
        kept.__dict__.update(self.__dict__)
        return kept

    def __deepcopy__(self, memo: dict[int, Any]) -> Partition:
        return self  # a description of ranks, which a copied layer shares

    def __reduce__(self) -> Any:
        raise belongs_to_its_job("a Partition")

    # Partitions from partitions

    @_together
    def create_partition_inclusive(self, ranks: Sequence[int]) -> Partition:
        """The partition of some workers of this one, in the given order.

        Args:
            ranks: distinct worker numbers of this partition.

        Returns:
            A 1-d partition; inactive on all other ranks.

        Raises:
            ValueError: on every worker, if on any of them a number is out of range, is given twice or differs.

        Collective over this partition.
        """
        if self._root is None:
            return Partition._of(None, (), ())
        chosen: list[int] = []
        with agreed("create_partition_inclusive", self, lambda: f"ranks {chosen}"):
            chosen.extend(map(index, ranks))
            if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= rank < self.size for rank in chosen):
                raise ValueError(
                    f"create_partition_inclusive: ranks {chosen} of a partition of {self.size}; they must be distinct "
                    f"numbers from 0 to {self.size - 1}, at least one"
                )
        return self._derived([self._ranks[rank] for rank in chosen], [len(chosen)], cartesian=False)

    @_together
    def create_cartesian_topology_partition(self, shape: Sequence[int]) -> Partition:
        """The same workers as a grid, row-major.

        Args:
            shape: the extents; their product must not exceed the number of workers. The workers beyond it are inactive.

        Raises:
            ValueError: on every worker, if on any of them the shape does not fit or differs.

        Collective over this partition.
        """
        extents: list[int] = []
        with agreed("create_cartesian_topology_partition", self, lambda: f"shape {extents}"):
            extents.extend(map(index, shape))
            if any(extent < 1 for extent in extents) or (self._root is not None and math.prod(extents) > self.size):
                raise ValueError(
                    f"create_cartesian_topology_partition: shape {extents} on {self.size} workers; every extent must "
                    f"be at least 1 and their product at most {self.size}"
                )
        if self._root is None:
            return Partition._of(None, (), extents)
        return self._derived(self._ranks[: math.prod(extents)], extents)

    @_together
    def create_cartesian_subtopology_partition(self, keep: Sequence[bool]) -> Partition:
        """The sub-grid along the kept dimensions that this worker is in. Inactive outside of this partition.

        Layers on it are a matter of the workers of this sub-grid: these construct and call them together.

        Args:
            keep: for each dimension whether it is kept.

        Raises:
            ValueError: on every worker, if ``keep`` has another length on any of them, or differs.

        Collective over this partition.
        """
        if self._root is None:
            return Partition._of(None, (), ())
        kept: list[bool] = []
        with agreed("create_cartesian_subtopology_partition", self, lambda: f"keep {kept}"):
            kept.extend(bool(k) for k in keep)
            if len(kept) != self.dim:
                raise ValueError(
                    f"create_cartesian_subtopology_partition: keep {kept} has {len(kept)} values; the partition has "
                    f"{self.dim} dimensions"
                )
        shape = [extent for extent, k in zip(self._shape, kept, strict=True) if k]
        if not self.active:
            return Partition._of(None, (), shape)
        mine = self.cartesian_index(self.rank)
        fixed = [d for d, k in enumerate(kept) if not k]
        indices = [self.cartesian_index(rank) for rank in range(self.size)]
        ranks = [self._ranks[rank] for rank, index in enumerate(indices) if all(index[d] == mine[d] for d in fixed)]
        partition = self._derived(ranks, shape)
        partition._voters = partition._ranks  # other workers have other sub-grids, and know nothing of this one
        return partition

    @_together
    def create_partition_union(self, other: Partition) -> Partition:
        """The workers of both, this partition's first, as a 1-d partition.

        Raises:
            ValueError: if the two partitions do not come from the same communicator; or if this one is a sub-grid, and
                the other has workers outside of it, who do not know of this sub-grid but of theirs.

        Collective over the communicator that both come from; of a sub-grid, over its workers.
        """
        if self._root is None and (not isinstance(other, Partition) or other._root is None):
            return Partition._of(None, (), ())
        union: list[int] = []
        everyone = self._line(self._voters)
        with agreed("create_partition_union", everyone, lambda: f"workers {list(self._ranks)} and {union}"):
            if not isinstance(other, Partition) or other._root != self._root:
                raise ValueError(f"create_partition_union: {self} and {other} do not come from the same communicator")
            if not set(other._ranks) <= set(self._voters):
                raise ValueError(
                    f"create_partition_union: {self} is a sub-grid, of which only its workers know; {other} has others"
                )
            union.extend(dict.fromkeys(self._ranks + other._ranks))
        return self._derived(union, [len(union)], cartesian=False)

    # Small data for scripts

    @_together
    def broadcast_data(self, data: Any = None, root: int = 0, P_data: Partition | None = None) -> NDArray[Any] | None:
        """A small array from one worker to all workers of this partition.

        Args:
            data: anything that ``numpy.asarray`` takes, but no objects; used on the sending worker only.
            root: the sending worker.
            P_data: the partition that ``root`` counts in; this one by default. Its workers have to be of this one.

        Returns:
            The array; None on ranks outside of this partition.

        Raises:
            ValueError: on every worker, if there is no such sender, the workers name different ones, or what it sends
                is no array.

        Collective over this partition.
        """
        source = self if P_data is None else P_data
        if not self.active:
            return None
        mine, sender = b"", -1
        with agreed("broadcast_data", self, lambda: f"from rank {sender}"):
            if not isinstance(source, Partition):
                raise TypeError(f"broadcast_data: P_data is a {type(source).__name__}; it has to be a distdl.Partition")
            if not 0 <= root < source.size or source._ranks[root] not in self._ranks:
                raise ValueError(f"broadcast_data: worker {root} of {source} is not a worker of {self}")
            sender = source._ranks[root]
            mine = _to_bytes(data) if source.rank == root else b""
        return _from_bytes(self._gather(mine)[self._ranks.index(sender)])

    @_together
    def allgather_data(self, data: Any) -> list[NDArray[Any]]:
        """Every worker's small array, in worker order; an empty list outside. Collective over this partition."""
        if not self.active:
            return []
        mine = b""
        with agreed("allgather_data", self, lambda: ""):
            mine = _to_bytes(data)
        return [_from_bytes(one) for one in self._gather(mine)]

    @_together
    def allreduce_data(self, data: Any, op: MPI.Op = MPI.SUM) -> NDArray[Any] | None:
        """The reduction of every worker's small array; None outside. Collective over this partition."""
        if not self.active:
            return None
        mine = np.empty(0)
        with agreed("allreduce_data", self, lambda: f"{mine.dtype} of shape {list(mine.shape)}, {_name_of(op)}"):
            mine = np.asarray(data, order="C")
            if not isinstance(op, MPI.Op):
                raise TypeError(f"allreduce_data: op={op!r}; it has to be an operation of mpi4py, such as MPI.SUM")
            if mine.dtype.hasobject:
                raise ValueError(f"allreduce_data: {type(data).__name__} is no array of numbers")
        result = np.empty_like(mine)
        with _core.Waiting("allreduce_data"):
            self._forum().view([]).Allreduce(mine, result, op=op)
        return result

    @_together
    def print_sequential(self, text: object) -> None:
        """Print every worker's text in worker order, on the first worker. Collective over this partition."""
        if not self.active:
            return
        mine = b""
        with agreed("print_sequential", self, lambda: ""):
            mine = str(text).encode()
        texts = self._gather(mine)
        if self.rank == 0:
            print("\n".join(one.decode() for one in texts), flush=True)

    # Early release

    def deactivate(self) -> None:
        """Forget the ranks: the partition is inactive from now on. Communicators are shared and stay cached."""
        self._describe(None, (), self._shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.deactivate()


def _name_of(op: MPI.Op) -> str:
    """What ranks can compare: the handle of an operation may differ among them."""
    names = ("SUM", "PROD", "MAX", "MIN", "MAXLOC", "MINLOC", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")
    return next((name for name in names if getattr(MPI, name) == op), "an operation of your own")


def _to_bytes(data: Any) -> bytes:
    """An array with its dtype and shape, as numpy writes files; objects are refused."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(data), allow_pickle=False)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> NDArray[Any]:
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array
