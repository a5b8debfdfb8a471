"""Which samples this rank reads of each batch, and how it reads them. Processes of a DataLoader run this, too.

Nothing here communicates or knows a partition: a batch is described by numbers, which travel to other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch.utils.data import default_collate

from distdl.parameters.layout import cut

Interval: TypeAlias = tuple[int, int]
Collate: TypeAlias = Callable[[list[object]], object]
Structure: TypeAlias = object
"""The structure of a sample: nested sequences and mappings, with the number of each tensor in its place."""


class Samples(Protocol):
    """A dataset of ``torch.utils.data`` that is indexed by numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> object: ...


def numbered(nested: object, leaves: list[object]) -> Structure:
    """The structure of nested sequences and mappings; their leaves are appended to a list."""
    if isinstance(nested, Mapping):
        return {key: numbered(one, leaves) for key, one in nested.items()}
    if isinstance(nested, Sequence) and not isinstance(nested, str | bytes):
        return tuple(numbered(one, leaves) for one in nested)
    leaves.append(nested)
    return len(leaves) - 1


def filled(structure: Structure, leaves: Sequence[object]) -> object:
    """Leaves in a structure."""
    if isinstance(structure, Mapping):
        return {key: filled(one, leaves) for key, one in structure.items()}
    if isinstance(structure, tuple):
        return tuple(filled(one, leaves) for one in structure)
    return leaves[structure] if isinstance(structure, int) else None


def tensors_of(structure: Structure, nested: object) -> list[torch.Tensor]:
    """The tensors of something that has this structure. Raises TypeError if it has another structure."""
    if isinstance(structure, Mapping) and isinstance(nested, Mapping) and structure.keys() == nested.keys():
        return [tensor for key, one in structure.items() for tensor in tensors_of(one, nested[key])]
    if isinstance(structure, tuple) and isinstance(nested, Sequence) and len(structure) == len(nested):
        return [tensor for one, part in zip(structure, nested, strict=True) for tensor in tensors_of(one, part)]
    if isinstance(structure, int) and isinstance(nested, torch.Tensor):
        return [nested]
    wanted = "a tensor" if isinstance(structure, int) else f"as many parts as the partitions {structure}"
    raise TypeError(f"loader: in a collated batch there is a {type(nested).__name__} in place of {wanted}")


@dataclass(frozen=True)
class Batch:
    """The samples of a batch that this rank reads.

    Attributes:
        numbers: of the samples; one at least, so that the shapes of a sample are known.
        kept: for each tensor of a sample the (start, stop) of the samples that this rank keeps.
    """

    numbers: list[int]
    kept: list[Interval]


@dataclass(frozen=True)
class Share:
    """Block ``place`` of ``parts`` of each batch, in one tensor of a sample; nothing where the place is None."""

    parts: int
    place: int | None


class Batches:
    """The batches of an epoch: the sampler of a DataLoader.

    Args:
        samples: how many samples there are.
        size: the samples in a batch of one replica.
        replicas, replica: how many replicas share the samples, and the number of this rank's replica.
        shares: for each tensor of a sample this rank's share.
        drop_last: whether to leave out samples that do not fill the batches of all replicas.

    Attributes:
        order: the numbers of all samples, in the order of this epoch.
    """

    def __init__(
        self, samples: int, size: int, replicas: int, replica: int, shares: Sequence[Share], drop_last: bool
    ) -> None:
        self.order: Sequence[int] = range(samples)
        self._together = size * replicas
        self._replicas, self._replica, self._shares = replicas, replica, shares
        self._drop_last = drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self.order), self._together)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[Batch]:
        order = self.order  # another iteration that begins before this one ends has its own
        for i in range(len(self)):
            yield self._batch(list(order[i * self._together : (i + 1) * self._together]))

    def _batch(self, together: list[int]) -> Batch:
        """This rank's part of the samples that all replicas take in one step."""
        start, stop = cut(len(together), self._replicas)[self._replica]
        own = [(0, 0) if s.place is None else cut(stop - start, s.parts)[s.place] for s in self._shares]
        taken = [one for one in own if one[1] > one[0]]
        first = min((one[0] for one in taken), default=0)
        last = max((one[1] for one in taken), default=0)
        numbers = together[start + first : start + last] or together[:1]
        return Batch(numbers, [(one[0] - first, one[1] - first) if one in taken else (0, 0) for one in own])


class Reader(torch.utils.data.Dataset[list[torch.Tensor]]):
    """A dataset of batches: it is indexed by a :class:`Batch`, and gives the tensors that this rank keeps of it."""

    def __init__(self, dataset: Samples, structure: Structure, collate: Collate | None) -> None:
        self._dataset, self._structure, self._collate = dataset, structure, collate or default_collate

    def __getitem__(self, batch: Batch) -> list[torch.Tensor]:
        together: Callable[[list[int]], list[object]] | None = getattr(self._dataset, "__getitems__", None)
        samples = together(batch.numbers) if together else [self._dataset[number] for number in batch.numbers]
        tensors = tensors_of(self._structure, self._collate(samples))
        for one in tensors:
            if one.dim() == 0 or len(one) != len(batch.numbers):
                raise ValueError(
                    f"loader: {len(batch.numbers)} samples make a collated batch of shape {list(one.shape)}; its first "
                    "dimension has to be that of the samples, since batches are cut along it"
                )
        return [one[start:stop] for one, (start, stop) in zip(tensors, batch.kept, strict=True)]


class Nothing(torch.utils.data.Dataset[list[torch.Tensor]]):
    """The dataset of a rank that receives its blocks from another rank: it reads nothing."""

    def __getitem__(self, batch: Batch) -> list[torch.Tensor]:
        return []
