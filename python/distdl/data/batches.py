"""The samples of each batch that this rank reads, and reading them, also in worker processes of a DataLoader.

This module does not communicate: a batch is described by numbers, which travel to the worker processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch.utils.data import default_collate

from distdl.data.order import Epoch
from distdl.partitions.boxes import Interval, cut

Collate: TypeAlias = Callable[[list[object]], object]
SampleStructure: TypeAlias = object
"""The structure of a sample: nested sequences and mappings of the numbers of its tensors."""


_epoch: ContextVar[int] = ContextVar("epoch", default=0)


def current_epoch() -> int:
    """The number of the epoch for which a loader reads samples, from 0 on, for datasets that change with it.

    A dataset asks for it in ``__getitem__``, in worker processes too. It is 0 where no loader of distdl reads. No other
    rank has to call it.
    """
    return _epoch.get()


class IndexedDataset(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> object: ...


def number_leaves(nested: object, leaves: list[object]) -> SampleStructure:
    """The structure of nested sequences and mappings; their leaves are appended to ``leaves``."""
    if isinstance(nested, Mapping):
        return {key: number_leaves(part, leaves) for key, part in nested.items()}
    if isinstance(nested, Sequence) and not isinstance(nested, str | bytes):
        return tuple(number_leaves(part, leaves) for part in nested)
    leaves.append(nested)
    return len(leaves) - 1


def fill_structure(structure: SampleStructure, leaves: Sequence[object]) -> object:
    """Put leaves into a structure."""
    if isinstance(structure, Mapping):
        return {key: fill_structure(part, leaves) for key, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(fill_structure(part, leaves) for part in structure)
    return leaves[structure] if isinstance(structure, int) else None


def flatten_tensors(structure: SampleStructure, nested: object) -> list[torch.Tensor]:
    """The tensors of a nested object. Raises TypeError if it has another structure."""
    if isinstance(structure, Mapping) and isinstance(nested, Mapping) and structure.keys() == nested.keys():
        return [tensor for key, child in structure.items() for tensor in flatten_tensors(child, nested[key])]
    if isinstance(structure, tuple) and isinstance(nested, Sequence) and len(structure) == len(nested):
        return [
            tensor for child, part in zip(structure, nested, strict=True) for tensor in flatten_tensors(child, part)
        ]
    if isinstance(structure, int) and isinstance(nested, torch.Tensor):
        return [nested]
    raise TypeError(
        f"loader: in a collated batch there is {_kind_and_parts(nested)} in place of "
        + ("a tensor" if isinstance(structure, int) else f"{_kind_and_parts(structure)}, as in P")
        + "; P has a partition, or None, for each tensor of a sample"
    )


def _kind_and_parts(nested: object) -> str:
    """The kind of an object, with the number of its parts or their keys."""
    kind = f"a {type(nested).__name__}"
    if isinstance(nested, Mapping):
        return f"{kind} with the keys {[*nested]}"
    return f"{kind} of {len(nested)}" if isinstance(nested, list | tuple) else kind


@dataclass(frozen=True)
class Batch:
    """The samples of a batch that this rank reads.

    Attributes:
        numbers: numbers of the samples; at least 1 sample, for the shapes.
        kept: for each tensor of a sample, (start, stop) of the samples that this rank keeps.
        epoch: number of the epoch.
    """

    numbers: list[int]
    kept: list[Interval]
    epoch: int


@dataclass(frozen=True)
class BatchShare:
    """Block ``place`` of ``parts`` blocks of each batch, for a tensor of a sample; nothing if the place is None."""

    parts: int
    place: int | None


class Batches:
    """The batches of an epoch: the sampler of a DataLoader.

    Args:
        epoch: the first epoch.
        size: the number of samples in a batch of a replica.
        replicas, replica: the number of replicas, and this rank's replica.
        shares: this rank's share for each tensor of a sample.
        drop_last: whether to leave out samples that do not fill the batches of all replicas.

    Attributes:
        epoch: the epoch of the next iteration.
    """

    def __init__(
        self, epoch: Epoch, size: int, replicas: int, replica: int, shares: Sequence[BatchShare], drop_last: bool
    ) -> None:
        self.epoch = epoch
        self._together = size * replicas
        self._replicas, self._replica, self._shares = replicas, replica, shares
        self._drop_last = drop_last

    def intervals(self, start: int | None = None) -> list[Interval]:
        """(start, stop) of the batches, by default of those that a run before this one has not taken."""
        n, size = len(self.epoch.order), self._together
        starts = range(self.epoch.taken if start is None else start, n - self._drop_last * (size - 1), size)
        return [(start, min(start + size, n)) for start in starts]

    def __len__(self) -> int:
        return len(self.intervals(0))

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch  # another iteration may replace it before this iteration ends
        for start, stop in self.intervals():
            yield self._batch(epoch.number, list(epoch.order[start:stop]))

    def _batch(self, epoch: int, together: list[int]) -> Batch:
        start, stop = cut(len(together), self._replicas)[self._replica]
        blocks = [(0, 0) if s.place is None else cut(stop - start, s.parts)[s.place] for s in self._shares]
        nonempty = [(low, high) for low, high in blocks if high > low]
        first = min((low for low, _ in nonempty), default=0)
        last = max((high for _, high in nonempty), default=0)
        numbers = together[start + first : start + last] or together[:1]
        return Batch(numbers, [(low - first, high - first) if high > low else (0, 0) for low, high in blocks], epoch)


class BatchReader(torch.utils.data.Dataset[list[torch.Tensor]]):
    """A dataset that is indexed by a :class:`Batch`, and returns the tensors that this rank keeps of it."""

    def __init__(self, dataset: IndexedDataset, structure: SampleStructure, collate: Collate | None) -> None:
        self._dataset, self._structure, self._collate = dataset, structure, collate or default_collate

    def __getitem__(self, batch: Batch) -> list[torch.Tensor]:
        token = _epoch.set(batch.epoch)
        try:
            return self._read(batch)
        finally:
            _epoch.reset(token)

    def _read(self, batch: Batch) -> list[torch.Tensor]:
        read_many: Callable[[list[int]], list[object]] | None = getattr(self._dataset, "__getitems__", None)
        samples = read_many(batch.numbers) if read_many else [self._dataset[number] for number in batch.numbers]
        tensors = flatten_tensors(self._structure, self._collate(samples))
        for tensor in tensors:
            if tensor.dim() == 0 or len(tensor) != len(batch.numbers):
                raise ValueError(
                    f"loader: {len(batch.numbers)} samples make a collated batch of shape {list(tensor.shape)}; its "
                    "first dimension has to be that of the samples, since batches are cut along it"
                )
        return [tensor[start:stop] for tensor, (start, stop) in zip(tensors, batch.kept, strict=True)]


class EmptyReader(torch.utils.data.Dataset[list[torch.Tensor]]):
    """The dataset of a rank that receives its blocks from another rank."""

    def __getitem__(self, batch: Batch) -> list[torch.Tensor]:
        return []
