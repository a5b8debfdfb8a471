"""How ranks construct layers together: with the same partitions and options, or with an exception on all of them.

Every rank holds every layer, so constructing one is collective over the communicator that its partitions come from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from distdl.agreement import compare, telling
from distdl.partition import Partition


@contextmanager
def constructing(what: str, partitions: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[list[Partition]]:
    """Check a construction on all ranks before anything is made.

    The body checks this rank's arguments. An exception in it is raised on all ranks; so is a ValueError when ranks that
    share a partition have different partitions or options.

    Args:
        what: the name of what is constructed.
        partitions: partitions or bare mpi4py communicators by name.
        options: everything else that has to be equal on all ranks.

    Yields:
        The partitions, in order, all with the same root communicator.
    """
    resolved = [partition._snapshot() for partition in _resolve_or_tell(what, partitions)]
    error: Exception | None = None
    try:
        yield resolved
    except Exception as raised:
        error = raised
    described = {name: [p._shape, p._ranks] for name, p in zip(partitions, resolved, strict=True)}
    voters = tuple(dict.fromkeys(rank for partition in resolved for rank in partition._voters))
    compare(what, f"construction of {what}", resolved[0]._root, voters, error, described, dict(options))


def tell(what: str, error: Exception, given: Iterable[Any]) -> None:
    """Raise an error on all ranks that construct something on the first partition among what was given."""
    known = (one if isinstance(one, Partition) else Partition(one) for one in given if _is_partition(one))
    first = next((one for one in known if one._root is not None), Partition(MPI.COMM_NULL))
    compare(what, f"construction of {what}", first._root, first._voters, error, {}, {})


constructor = telling(tell)
"""A decorator for constructors of layers, and for functions that construct one."""


def _is_partition(given: Any) -> bool:
    return isinstance(given, Partition | MPI.Comm) and not isinstance(given, MPI.Intercomm)


def _resolve_or_tell(what: str, partitions: Mapping[str, Any]) -> list[Partition]:
    """What `resolve` raises for one of them is raised on the ranks of another."""
    try:
        return list(resolve(what, partitions).values())
    except TypeError as error:
        tell(what, error, partitions.values())
        raise


def resolve(what: str, partitions: Mapping[str, Any]) -> dict[str, Partition]:
    """Partitions of one root communicator from what a user passed.

    Partitions that come from one communicator stay as they are. Others, bare communicators among them, are not known on
    the ranks outside of them: their workers tell each other. Collective over each of them then.

    Raises:
        TypeError: if something is neither a partition nor an mpi4py communicator.
        ValueError: if the workers of one have no way to learn of another, because no rank is in both.
    """
    known: dict[str, Partition] = {}
    for name, given in partitions.items():
        if not _is_partition(given):
            raise TypeError(
                f"{what}: {name} is a {type(given).__name__}; it has to be a distdl.Partition or an mpi4py "
                "intracommunicator"
            )
        known[name] = given if isinstance(given, Partition) else Partition(given)
    roots = [partition._root for partition in known.values()]
    if all(root is None for root in roots) or (None not in roots and all(root == roots[0] for root in roots)):
        return known
    return _discover(what, known)


def _discover(what: str, known: dict[str, Partition]) -> dict[str, Partition]:
    table = {name: [p._world_ranks(), p._shape] for name, p in known.items() if p._root is not None}
    if any(MPI.UNDEFINED in ranks for ranks, _ in table.values()):
        raise ValueError(f"{what}: partitions of several communicators may only have ranks of MPI.COMM_WORLD")
    for _ in known:  # each round carries the knowledge across one more partition
        for partition in known.values():
            if partition.active:
                for text in partition._gather(json.dumps(table).encode()):
                    table.update(json.loads(text))
    missing = [name for name in known if name not in table]
    if missing:
        raise ValueError(
            f"{what}: this rank is in {[name for name in known if name in table]}, but no rank of these knows "
            f"{missing}; make all of them from one distdl.Partition, whose ranks know each other"
        )
    voters = tuple(dict.fromkeys(rank for name in known for rank in table[name][0]))
    resolved = {}
    for name, given in known.items():
        ranks, shape = table[name]
        resolved[name] = Partition._of(MPI.COMM_WORLD, ranks, shape)
        resolved[name].comm = given.comm
        resolved[name]._voters = voters
    return resolved
