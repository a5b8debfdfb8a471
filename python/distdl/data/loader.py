"""Batches in blocks, from torch's DataLoader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import TypeAlias

import torch
from torch.utils.data import DataLoader

from distdl import operators
from distdl.data.batches import (
    Batches,
    BatchReader,
    BatchShare,
    Collate,
    EmptyReader,
    IndexedDataset,
    SampleStructure,
    fill_structure,
    number_leaves,
)
from distdl.data.order import Epoch, LoaderState, SampleOrder
from distdl.operators.dispatch import Operator
from distdl.partitions.comparison import agreed
from distdl.partitions.construction import constructing, constructor
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition
from distdl.partitions.structure import zero_volume_tensor

TensorList: TypeAlias = list[torch.Tensor]
Partitions: TypeAlias = Partition | Sequence["Partitions | None"] | Mapping[str, "Partitions | None"]
"""A partition for each tensor of a sample, in the structure of a sample; None for tensors that every rank has whole."""


@constructor
def loader(
    dataset: IndexedDataset | None,
    P: Partitions,
    batch_size: int = 1,
    *,
    root: int | None = None,
    P_replicas: Partition | None = None,
    shuffle: bool = False,
    drop_last: bool = False,
    generator: torch.Generator | None = None,
    collate_fn: Collate | None = None,
    **options: object,
) -> Loader:
    """Batches of a dataset in blocks, the same batches in the same order on all ranks.

    Args:
        dataset: a dataset of ``torch.utils.data`` with ``len`` and samples that are indexed by numbers.
        P: the partition of a batch, with the samples along the first dimension; or a tuple or dict of partitions, for
            samples of that structure. A partition may have further dimensions of extent 1. None in place of a partition
            gives every rank the whole tensor, such as the labels of all images.
        batch_size: the number of samples in a batch; with P_replicas, in a batch of each replica.
        root: None if every rank has the dataset: its samples are this rank's blocks of samples (see
            :func:`distdl.data.read_block`), and a rank reads only the samples in its block of a batch. Otherwise the
            number of the worker of P (of its first partition) that reads batches of whole samples, and sends blocks to
            the other ranks, whose ``dataset`` may be None.
        P_replicas: the partition of :class:`distdl.DataParallel`; P is then a partition of this rank's replica, and
            replicas share the samples of a batch. The root is a worker of each replica.
        shuffle, drop_last, generator, collate_fn: as in ``torch.utils.data.DataLoader``, with the same order for the
            same seed. Without a generator, the first worker's default generator counts.
        options: further options of ``torch.utils.data.DataLoader``, such as ``num_workers``.

    Returns:
        An iterable with a length. A batch has this rank's blocks in the structure of P: empty blocks on ranks outside
        of a partition, or if the last batch has fewer samples than blocks. It has ``state_dict()``.

    Raises:
        ValueError: on all ranks, if their arguments or the lengths of their datasets differ, if root is not a worker,
            or if batch_size is not positive.
        TypeError: on all ranks, if P holds anything but partitions and None, or ``dataset`` has no length or is
            missing.

    Errors of the dataset are raised on all ranks. Collective over the communicator that P comes from, or over
    P_replicas. So is each step of an iteration.

    Source: https://docs.pytorch.org/docs/stable/data.html
    """
    leaves: list[object] = []
    structure = number_leaves(P, leaves)
    named = {f"P{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Partition)}
    if isinstance(P_replicas, Partition):
        named = named or {"P": P_replicas}
    if not named:
        raise TypeError(f"loader: P is a {type(P).__name__}; it has to be a distdl.Partition, or hold some")
    compared = {"batch_size": batch_size, "root": root, "shuffle": shuffle, "drop_last": drop_last}
    replicas_of = P_replicas.grid.ranks if isinstance(P_replicas, Partition) else P_replicas
    together = {"structure": structure, "P_replicas": replicas_of}
    with constructing("loader", named, compared | together):
        places = [leaf for leaf in leaves if leaf is None or (isinstance(leaf, Partition) and leaf.grid.known)]
        partitions = [place for place in places if place is not None]
        _check_arguments(leaves, places, batch_size, root)
        if not isinstance(P_replicas, Partition | None):
            raise TypeError(f"loader: P_replicas is a {type(P_replicas).__name__}; it has to be a distdl.Partition")
        if not isinstance(generator, torch.Generator | None):
            raise TypeError(f"loader: generator is a {type(generator).__name__}; it has to be a torch.Generator")
        reads = root is None or partitions[0].grid.rank == root
        if reads and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(
                f"loader: dataset is a {type(dataset).__name__}; it has to have a length and numbered samples"
            )
        length = len(dataset) if reads and dataset is not None else None
    all_ranks = partitions[0].grid.constructing_ranks()
    voters = all_ranks if P_replicas is None else P_replicas.grid
    lengths = set(map(json.loads, voters.gather(json.dumps(length).encode()))) - {None}
    replicas, replica = (1, 0) if P_replicas is None else (P_replicas.grid.shape[0], P_replicas.grid.place[0])
    with agreed("loader", voters, lambda: repr(compared)):  # torch checks the options, which may differ among ranks
        if len(lengths) != 1:
            raise ValueError(f"loader: the ranks have datasets of the lengths {sorted(lengths)}; they must be equal")
        shares = [_batch_share(place, root) for place in places]
        samples = lengths.pop()
        batches = Batches(Epoch(0, range(samples)), index(batch_size), replicas, replica, shares, bool(drop_last))
        if reads and dataset is not None:
            reader = DataLoader[TensorList](
                BatchReader(dataset, structure, collate_fn), batch_size=None, sampler=batches,
                generator=torch.Generator(), collate_fn=_identity, **options,
            )  # fmt: skip
        else:
            reader = DataLoader[TensorList](EmptyReader(), batch_size=None, sampler=batches, collate_fn=_identity)
    order = SampleOrder(voters, samples, bool(shuffle), generator)
    reading_rank = None if root is None else partitions[0].ranks[root]
    return Loader(reader, batches, order, BatchScatter(places, all_ranks, reading_rank, structure))


def _check_arguments(
    leaves: Sequence[object], places: Sequence[Partition | None], batch_size: int, root: int | None
) -> None:
    if wrong := [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Partition | None)]:
        raise TypeError(
            f"loader: P holds a {wrong[0]}; for each tensor of a sample it has to hold a distdl.Partition, or None"
        )
    first = next((P for P in places if P is not None), None)
    if len(places) < len(leaves) or first is None:
        raise ValueError("loader: P is a partition that this rank does not know; only its own ranks can load from it")
    if index(batch_size) < 1:
        raise ValueError(f"loader: batch_size={batch_size}; it must be at least 1")
    if root is not None and not 0 <= index(root) < first.size:
        raise ValueError(f"loader: root={root} is not a worker of {first}")


def _batch_share(P: Partition | None, root: int | None) -> BatchShare:
    """The block of a batch that this rank reads: the whole batch on a root."""
    if root is not None or P is None or P.dim == 0:
        return BatchShare(1, 0)
    return BatchShare(P.grid.shape[0], P.grid.place[0] if P.active else None)


def _identity(batch: object) -> object:
    return batch


class BatchScatter:
    """Sends batches from a rank to the blocks of all ranks; if every rank reads, batches stay as they are."""

    def __init__(
        self, places: Sequence[Partition | None], all_ranks: Grid, root: int | None, structure: SampleStructure
    ) -> None:
        self._grids = [None if P is None else P.grid for P in places]
        self._all_ranks, self._root, self._structure = all_ranks, root, structure
        self._operators: dict[tuple[int, int], Operator] = {}

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise ValueError if a partition cuts dimensions that its tensor does not have."""
        for tensor, grid in zip(tensors, self._grids, strict=False):
            if grid is not None and any(extent > 1 for extent in grid.shape[tensor.dim() :]):
                raise ValueError(
                    f"loader: a tensor of {tensor.dim()} dimensions does not fit a partition of shape "
                    f"{list(grid.shape)}, which cuts more of them"
                )

    def __call__(self, tensors: Sequence[torch.Tensor]) -> object:
        """This rank's blocks in the structure of a sample. Collective over the ranks."""
        if self._root is None:
            return fill_structure(self._structure, tensors)
        is_root = self._all_ranks.me == self._root
        structures = json.dumps([[str(tensor.dtype).removeprefix("torch."), tensor.dim()] for tensor in tensors])
        received = json.loads(self._all_ranks.gather(structures.encode())[self._all_ranks.ranks.index(self._root)])
        blocks = []
        for i, (dtype, dim) in enumerate(received):
            whole = tensors[i] if is_root else zero_volume_tensor(dtype=getattr(torch, dtype))
            blocks.append(self._operator(self._root, i, dim)(whole))
        return fill_structure(self._structure, blocks)

    def _operator(self, root: int, i: int, dim: int) -> Operator:
        """The operator that brings tensor i from the root to its blocks, or to all ranks."""
        if (i, dim) not in self._operators:
            grid = self._grids[i]
            if grid is None:
                source = self._all_ranks.line((root,))
                self._operators[i, dim] = operators.broadcast(source, self._all_ranks, preserve_batch=False)
                return self._operators[i, dim]
            extents = grid.shape + (1,) * (dim - grid.dim)
            source, blocks = grid.related((root,), (1,) * dim), grid.reshaped(extents[:dim])
            self._operators[i, dim] = operators.repartition(source, blocks)
        return self._operators[i, dim]


class Loader:
    """Batches in blocks, made by :func:`distdl.data.loader`. Each step of an iteration is collective over its ranks.

    Attributes:
        dataloader: torch's DataLoader with which this rank reads.
    """

    def __init__(
        self, dataloader: DataLoader[TensorList], batches: Batches, order: SampleOrder, scatter: BatchScatter
    ) -> None:
        self.dataloader = dataloader
        self._batches, self._order, self._scatter = batches, order, scatter
        self._position: tuple[Epoch | None, int] = None, 0  # the epoch, and how many samples of it are taken

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self._batches)

    def __iter__(self) -> Iterator[object]:
        epoch = self._batches.epoch = self._order.begin()
        if isinstance(self.dataloader.generator, torch.Generator):
            self.dataloader.generator.manual_seed(epoch.base)
        read: Iterator[Sequence[torch.Tensor]] | None = None
        for _, stop in self._batches.intervals():
            batch: Sequence[torch.Tensor] = ()
            with agreed("loader", self._order.voters, lambda: ""):  # an error in the dataset is raised on all ranks
                read = iter(self.dataloader) if read is None else read
                batch = next(read)
                self._scatter.check(batch)
            blocks = self._scatter(batch)
            self._position = epoch, stop
            yield blocks
        self._order.end()
        if self._position[0] is epoch:  # no other iteration has begun
            self._position = None, 0

    def state_dict(self) -> LoaderState:
        """The place of a run in its samples, as numbers and tensors: behind the last batch that an iteration gave.

        :func:`distdl.save` and ``torch.save`` can save it; the first rank's state is enough. Batches that worker
        processes have read ahead do not count. Other ranks do not have to call it.

        Source: https://meta-pytorch.org/data/main/torchdata.stateful_dataloader.html
        """
        return self._order.state(*self._position)

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Go on from a state, on any number of ranks, replicas and worker processes.

        The next iteration is the rest of the epoch in which the state was saved, or, if it was saved between epochs, a
        new epoch. The generator that shuffles gets its state back; without ``generator=`` this is torch's default
        generator, on every rank.

        Raises:
            ValueError: on all ranks, if the state is of another number of samples or another ``shuffle``, is not a
                loader's, or differs among ranks.
            TypeError: on all ranks, if a value in it is of another type.

        Collective over the ranks of the loader.
        """
        self._order.load_state(state_dict)
        self._position = self._order.position()
