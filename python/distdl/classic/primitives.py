"""The primitives as programs written for DistDL know them: with a buffer manager, and with their partitions."""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np
import torch

from distdl.classic.attributes import OldAttributes
from distdl.classic.buffer import MPIBufferManager
from distdl.classic.slicing import IntArray, Slices, along_axis
from distdl.nn import primitives
from distdl.operators.constructors import HaloWidths
from distdl.partitions.boxes import balanced_box, block_at, box_shape, common_box, slices_within
from distdl.partitions.construction import PartitionLike, grid_of
from distdl.partitions.partition import Partition

AllGather = primitives.AllGather
AllSumReduce = primitives.AllSumReduce
ReduceScatter = primitives.ReduceScatter
Overlap: TypeAlias = tuple[Slices, tuple[int, ...], int]


def _as_partition(P: PartitionLike) -> Partition:
    return P if isinstance(P, Partition) else Partition.of_grid(grid_of(P))


class _BetweenTwo(OldAttributes):
    """An operator with its partitions as attributes."""

    P_x: Partition
    P_y: Partition

    def keep(self, P_x: PartitionLike, P_y: PartitionLike) -> None:
        """Note the partitions."""
        self.P_x, self.P_y = _as_partition(P_x), _as_partition(P_y)


def _between_two(ours: type[primitives.Broadcast | primitives.SumReduce]) -> type:
    """Our operator, with its partitions as attributes."""

    @functools.wraps(ours.__init__)
    def construct(self: _BetweenTwo, P_x: PartitionLike, P_y: PartitionLike, *args: object, **kwargs: object) -> None:
        ours.__init__(self, P_x, P_y, *args, **kwargs)  # type: ignore[arg-type]
        self.keep(P_x, P_y)

    fields = {"__init__": construct, "__doc__": ours.__doc__, "__module__": __name__}
    return type(ours.__name__, (_BetweenTwo, ours), fields)


Broadcast = _between_two(primitives.Broadcast)
SumReduce = _between_two(primitives.SumReduce)


class Repartition(_BetweenTwo, primitives.Repartition):
    """Our operator, with its partitions as attributes.

    Args:
        P_x, P_y, preserve_batch: as in our operator.
        buffer_manager: taken, and left alone.

    Raises:
        ValueError: on all ranks, also where the tensor has fewer elements in a dimension than a partition has workers.
    """

    def __init__(
        self,
        P_x: PartitionLike,
        P_y: PartitionLike,
        preserve_batch: bool = True,
        buffer_manager: MPIBufferManager | None = None,
    ) -> None:
        super().__init__(P_x, P_y, preserve_batch)
        self.keep(P_x, P_y)
        self.buffer_manager = buffer_manager or MPIBufferManager()
        self.P_x_to_y_overlaps: list[Overlap | None] = []

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the operator; note afterwards which part of a balanced block goes to which worker."""
        result = super().forward(input)
        x, y = self.P_x.grid, self.P_y.grid
        self.P_x_to_y_overlaps = []
        everyone = x.line(tuple(dict.fromkeys((*x.ranks, *y.ranks))))
        if everyone.active:
            shapes = everyone.gather(np.array(input.shape, dtype=np.int64).tobytes())[: x.size]
            extents = np.array([np.frombuffer(shape, dtype=np.int64) for shape in shapes]).reshape(*x.shape, -1)
            self._check_that_all_have_a_part(extents)
            if x.active:
                self.P_x_to_y_overlaps = [self._overlap(extents, y.index(worker), worker) for worker in range(y.size)]
        return result

    def _check_that_all_have_a_part(self, extents: IntArray) -> None:
        """Raise where a dimension has fewer elements than a partition has workers."""
        whole = [int(along_axis(extents, d).sum()) for d in range(self.P_x.grid.dim)]
        for name, grid in (("P_x", self.P_x.grid), ("P_y", self.P_y.grid)):
            if any(n < p for n, p in zip(whole, grid.shape, strict=True)):
                raise ValueError(
                    f"Repartition: a tensor of shape {whole} does not divide over {name} of shape {list(grid.shape)}; "
                    "in classic mode each worker must have a part of it"
                )

    def _overlap(self, extents: IntArray, place: tuple[int, ...], worker: int) -> Overlap | None:
        """(slices of this worker's block, shape, worker of P_y) of what goes there; None for nothing."""
        sizes = [along_axis(extents, d).tolist() for d in range(self.P_x.grid.dim)]
        own = block_at(sizes, self.P_x.grid.place)
        common = common_box(own, balanced_box([*map(sum, sizes)], self.P_y.grid.shape, place))
        return None if common is None else (slices_within(common, own), box_shape(common), worker)


DistributedTranspose = Repartition


class HaloExchange(OldAttributes, primitives.HaloExchange):
    """Our operator; its four-argument form returns a new tensor, and so does its adjoint.

    Args:
        P_x: the partition.
        halo_shape, recv_buffer_shape, send_buffer_shape: [dim, 2] widths; see :class:`distdl.nn.HaloExchange`.
        buffer_manager: taken, and left alone.
        options: the further options of our operator, by name.
    """

    def __init__(
        self,
        P_x: PartitionLike,
        halo_shape: HaloWidths,
        recv_buffer_shape: HaloWidths | None = None,
        send_buffer_shape: HaloWidths | None = None,
        buffer_manager: MPIBufferManager | None = None,
        **options: object,
    ) -> None:
        super().__init__(P_x, halo_shape, recv_buffer_shape, send_buffer_shape, **options)  # type: ignore[arg-type]
        self.P_x, self.buffer_manager = _as_partition(P_x), buffer_manager or MPIBufferManager()
        self.halo_shape = halo_shape
        if recv_buffer_shape is not None:
            self.recv_buffer_shape, self.send_buffer_shape = recv_buffer_shape, send_buffer_shape
