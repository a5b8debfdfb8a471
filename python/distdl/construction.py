"""How ranks do things together that are no operators: what is wrong on one of them raises on all.

Every rank holds every layer, so constructing one is collective over the communicator that its partitions come from.
There the ranks compare what they are about to construct, in one small reduction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from distdl._load import _core

if TYPE_CHECKING:
    from distdl.partition import Partition

_RAISED = {kind.__name__: kind for kind in (TypeError, ValueError, RuntimeError, NotImplementedError)}


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
    resolved = _resolve_or_tell(what, partitions)
    root = resolved[0]
    error: Exception | None = None
    try:
        yield resolved
    except Exception as raised:
        error = raised
    described = {name: [p._shape, p._ranks] for name, p in zip(partitions, resolved, strict=True)}
    _compare(what, f"construction of {what}", root._root, root._voters, error, described, dict(options))


def _resolve_or_tell(what: str, partitions: Mapping[str, Any]) -> list[Partition]:
    """What `resolve` raises is raised on the ranks of whichever partition is one."""
    from distdl.partition import Partition

    try:
        return list(resolve(what, partitions).values())
    except TypeError as error:
        for given in partitions.values():
            if isinstance(given, Partition):
                _compare(what, f"construction of {what}", given._root, given._voters, error, {}, {})
        raise


@contextmanager
def agreed(what: str, partition: Partition, describe: Callable[[], str]) -> Iterator[None]:
    """The same among the workers of one partition: exceptions of the body, and differences in what it describes."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    root, voters = (partition._root, partition._ranks) if partition.active else (None, ())
    members = {"the partition": [partition._shape, partition._ranks]}
    _compare(what, what, root, voters, error, members, {"arguments": describe()})


def _compare(
    what: str,
    call: str,
    root: MPI.Comm | None,
    voters: tuple[int, ...],
    error: Exception | None,
    partitions: dict[str, Any],
    options: dict[str, Any],
) -> None:
    if root is None:  # nobody to compare with
        if error is not None:
            raise error
        return
    mine: dict[str, Any] = {"what": what, "partitions": partitions, "options": {k: repr(v) for k, v in options.items()}}
    if error is not None:
        mine = {"raised": type(error).__name__, "text": str(error)}
    same, texts = _core.Forum(root, list(voters)).compare(call, json.dumps(mine, sort_keys=True))
    if error is not None and same:
        raise error
    views = dict(zip(voters, map(json.loads, texts), strict=True)) if not same else {}
    for rank, view in views.items():
        if "raised" in view:
            text = view["text"] if error is not None else f"{view['text']} (raised on rank {rank})"
            raise _RAISED.get(view["raised"], RuntimeError)(text) from error
    for view in views.values():
        involved = {rank for _, ranks in view["partitions"].values() for rank in ranks}
        if any(views[rank] != view for rank in involved):
            names = " and ".join(sorted({view["what"] for view in views.values()}))
            raise ValueError(f"{names}: the ranks ask for different things; " + _differences(views))


def _differences(views: Mapping[int, Any]) -> str:
    by_text: dict[str, list[int]] = {}
    for rank, view in views.items():
        partitions = [
            f"{name} of shape {shape} on ranks {ranks}" for name, (shape, ranks) in view["partitions"].items()
        ]
        options = [f"{name}={value}" for name, value in view["options"].items()]
        by_text.setdefault(f"{view['what']}({', '.join(partitions + options)})", []).append(rank)
    return "; ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in by_text.items())


def resolve(what: str, partitions: Mapping[str, Any]) -> dict[str, Partition]:
    """Partitions of one root communicator from what a user passed.

    Partitions that come from one communicator stay as they are. Others, bare communicators among them, are not known on
    the ranks outside of them: their workers tell each other. Collective over each of them then.

    Raises:
        TypeError: if something is neither a partition nor an mpi4py communicator.
        ValueError: if the workers of one have no way to learn of another, because no rank is in both.
    """
    from distdl.partition import Partition

    known: dict[str, Partition] = {}
    for name, given in partitions.items():
        if isinstance(given, Partition):
            known[name] = given
        elif isinstance(given, MPI.Comm) and not isinstance(given, MPI.Intercomm):
            known[name] = Partition(given)
        else:
            raise TypeError(
                f"{what}: {name} is a {type(given).__name__}; it has to be a distdl.Partition or an mpi4py "
                "intracommunicator"
            )
    roots = [partition._root for partition in known.values()]
    if all(root is None for root in roots) or (None not in roots and all(root == roots[0] for root in roots)):
        return known
    return _discover(what, known)


def _discover(what: str, known: dict[str, Partition]) -> dict[str, Partition]:
    from distdl.partition import Partition

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
