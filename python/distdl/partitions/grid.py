"""The description of a partition: its ranks, its shape, and the place of this rank among them.

Operators and layers work with the Grid of a user's :class:`distdl.Partition`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq, index
from typing import TypeAlias

from mpi4py import MPI

from distdl import _core
from distdl.partitions.boxes import as_slices, balanced_box

Communicator: TypeAlias = MPI.Comm
ShapeAndRanks = tuple[list[int], Sequence[int]]  # shape and ranks, as the C++ core takes partitions


@dataclass(frozen=True, eq=False)
class Grid:
    """Ranks of a communicator as a row-major grid of workers. Making a grid takes no communication.

    Attributes:
        root: the communicator in which ranks are counted; None on a rank that does not know the partition.
        ranks: the ranks of the workers, in worker order.
        shape: the number of workers along each dimension.
        constructors: the ranks that construct layers and operators on this grid together.
        me: this rank in the root communicator, which the grid may outlive.
        world: all ranks of the root communicator, as ranks of MPI.COMM_WORLD.
    """

    root: MPI.Comm | None
    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    constructors: tuple[int, ...]
    me: int
    world: Sequence[int] = ()

    @classmethod
    def of(cls, comm: MPI.Comm) -> Grid:
        """The grid of all ranks of a communicator. Raises RuntimeError outside of MPI's lifetime."""
        refuse_ended("Partition", comm)
        ranks = _first_ranks(comm.Get_size())
        shape = tuple(comm.dims) if isinstance(comm, MPI.Cartcomm) else (len(ranks),)
        group, world_group = comm.Get_group(), MPI.COMM_WORLD.Get_group()
        try:
            world = _compact(MPI.Group.Translate_ranks(group, list(ranks), world_group))
        finally:
            group.Free()
            world_group.Free()
        return cls(comm, ranks, shape, constructors=ranks, me=comm.Get_rank(), world=world)

    @classmethod
    def alone(cls) -> Grid:
        """The grid of this rank."""
        return cls.of(MPI.COMM_SELF)

    @classmethod
    def all_of_job(cls) -> Grid:
        """The grid of all ranks of the job."""
        return cls.of(MPI.COMM_WORLD)

    @classmethod
    def imagined(cls, size: int) -> Grid:
        """A line of ranks that need not exist, to plan for them in one process."""
        ranks = _first_ranks(size)
        return cls(MPI.COMM_SELF, ranks, (size,), constructors=ranks, me=MPI.UNDEFINED, world=range(size))

    @classmethod
    def unknown(cls, shape: Sequence[int] = ()) -> Grid:
        """The grid of a partition that this rank does not know, except perhaps its shape."""
        return cls(None, (), tuple(shape), (), MPI.UNDEFINED)

    @property
    def known(self) -> bool:
        return self.root is not None

    @functools.cached_property
    def rank(self) -> int:
        """This rank's number among the workers; ``MPI.PROC_NULL`` if it is not a worker."""
        try:
            return self.ranks.index(self.me)
        except ValueError:
            return MPI.PROC_NULL

    @functools.cached_property
    def active(self) -> bool:
        return self.rank != MPI.PROC_NULL

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def dim(self) -> int:
        return len(self.shape)

    @functools.cached_property
    def place(self) -> tuple[int, ...]:
        """The index of this worker."""
        return self.index(self.rank)

    def index(self, worker: int) -> tuple[int, ...]:
        """The index of a worker. Raises ValueError for an unknown number."""
        return tuple(_core.grid_index(list(self.shape), worker))

    def worker(self, index: Sequence[int]) -> int:
        return _core.grid_rank(list(self.shape), list(index))

    def neighbors(self, worker: int) -> list[tuple[int, int]]:
        """(left, right) neighbor of a worker for each dimension; ``MPI.PROC_NULL`` at the edges."""
        index, pairs = self.index(worker), []
        for d, extent in enumerate(self.shape):
            left, right = (
                self.worker((*index[:d], at, *index[d + 1 :])) if 0 <= at < extent else MPI.PROC_NULL
                for at in (index[d] - 1, index[d] + 1)
            )
            pairs.append((left, right))
        return pairs

    @functools.cached_property
    def workers(self) -> ShapeAndRanks:
        """Shape and ranks, as the C++ core takes partitions."""
        return list(self.shape), self.ranks

    @functools.cached_property
    def cache(self) -> dict[object, object]:
        """Objects that functions have constructed for this grid, and use again."""
        return {}

    def related(self, ranks: Sequence[int], shape: Sequence[int]) -> Grid:
        """A grid of other ranks of the same root communicator."""
        extents = tuple(int(extent) for extent in shape)
        return Grid(self.root, tuple(ranks), extents, self.constructors, self.me, self.world)

    def among(self, ranks: Sequence[int]) -> Grid:
        """This grid with these ranks as its constructors."""
        return Grid(self.root, self.ranks, self.shape, tuple(ranks), self.me, self.world)

    def reshaped(self, shape: Sequence[int]) -> Grid:
        return self.related(self.ranks, shape)

    def line(self, ranks: Sequence[int]) -> Grid:
        return self.related(ranks, (len(ranks),))

    def first_along(self, axes: Sequence[int]) -> Grid:
        """The workers whose index is 0 along these axes, in a grid with extent 1 there."""
        if not self.known:
            return self
        shape = [1 if d in axes else extent for d, extent in enumerate(self.shape)]
        indices = ((worker, self.index(worker)) for worker in range(self.size))
        return self.related([self.ranks[w] for w, index in indices if not any(index[a] for a in axes)], shape)

    def side_by_side(self, place: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
        """The ranks of the workers whose places differ from this place only along these axes, row-major."""
        extents = [self.shape[a] for a in axes]
        ranks = []
        for i in range(math.prod(extents)):
            index = list(place)
            for axis, at in zip(axes, _core.grid_index(extents, i), strict=True):
                index[axis] = at
            ranks.append(self.ranks[self.worker(index)])
        return tuple(ranks)

    def constructing_ranks(self) -> Grid:
        return self.line(self.constructors)

    def host_exchange(self) -> _core.HostExchange:
        """The exchange of small data in host memory among the workers."""
        return _core.HostExchange(self.root, self.ranks)

    def byte_messages(self, call: str) -> _core.ByteMessages:
        """Messages of bytes between the workers, in a call on which they have agreed. Collective over them."""
        return _core.ByteMessages(call, self.root, self.ranks)

    def apart(self) -> Grid:
        """The workers as a line on a separate communicator, for calls on another thread. Collective over them."""
        return Grid.of(self.host_exchange().apart())

    def gather(self, data: bytes) -> list[bytes]:
        """Every worker's bytes, in worker order. Collective over the workers, without a comparison."""
        return self.host_exchange().gather(data)

    def slices(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """This worker's block of a whole tensor of this shape; see :meth:`distdl.Partition.slices`."""
        extents = [index(extent) for extent in shape]
        if self.dim > len(extents) or any(extent < 0 for extent in extents):
            raise ValueError(
                f"slices: a tensor of shape {extents} on {self}; it has to have at least {self.dim} dimensions, with "
                "extents of at least 0"
            )
        if not self.active:
            return (slice(0, 0),) * len(extents)
        workers = self.shape + (1,) * (len(extents) - self.dim)
        place = self.place + (0,) * (len(extents) - self.dim)
        return as_slices(balanced_box(extents, workers, place))

    def world_ranks(self) -> tuple[int, ...]:
        """The workers as ranks of MPI.COMM_WORLD, also after the end of MPI."""
        return tuple(self.world[rank] for rank in self.ranks)

    def __repr__(self) -> str:
        text = f"Partition(shape={list(self.shape)}, ranks={list(self.ranks)}"
        if self.active:
            return f"{text}, rank={self.rank}, index={list(self.place)})"
        return text + ", inactive)"

    def __deepcopy__(self, memo: dict[int, object]) -> Grid:
        return self  # a description of ranks, which a copied layer shares

    def __reduce__(self) -> str | tuple[object, ...]:
        raise belongs_to_its_job("a Partition")


@functools.lru_cache(maxsize=8)
def _first_ranks(size: int) -> tuple[int, ...]:
    """All ranks of a communicator of this size: one tuple for all grids."""
    return tuple(range(size))


def _compact(ranks: Sequence[int]) -> Sequence[int]:
    """The same ranks, as a range if each follows the one before it."""
    following = range(ranks[0], ranks[0] + len(ranks)) if ranks else range(0)
    return following if all(map(eq, ranks, following)) else tuple(ranks)


def refuse_ended(operation: str, root: MPI.Comm | None) -> None:
    """Raise RuntimeError if MPI is not running, or ``root``, the operation's communicator if known, was freed."""
    if not MPI.Is_initialized():
        raise RuntimeError(f"{operation}: MPI is not initialized")
    if MPI.Is_finalized() or root == MPI.COMM_NULL:
        raise RuntimeError(f"{operation}: the communicator of the partitions was freed, or MPI was finalized")


def belongs_to_its_job(name: str) -> TypeError:
    """The error for pickling a partition, or an object that has a partition."""
    return TypeError(
        f"{name} belongs to its running job and cannot be pickled; save a model's state_dict(), or "
        "distdl.sequential_state_dict(model), and make the partitions and layers anew"
    )
