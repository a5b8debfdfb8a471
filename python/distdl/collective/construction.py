"""How ranks construct layers together: with the same partitions and options, or with an exception on all of them.

Every rank holds every layer, so constructing one is collective over the communicator that its partitions come from.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import torch
from mpi4py import MPI

from distdl.collective.comparison import compare, misfit, raise_together
from distdl.collective.grid import Grid, refuse_ended
from distdl.partition import Partition

PartitionLike: TypeAlias = Partition | Grid | MPI.Comm
"""What layers take as a partition."""


@contextmanager
def constructing(
    what: str, partitions: Mapping[str, PartitionLike], options: Mapping[str, object]
) -> Iterator[list[Grid]]:
    """Check a construction on all ranks before anything is made.

    The body checks this rank's arguments. An exception in it is raised on all ranks; so is a ValueError if ranks that
    share a partition have different partitions or options. Collective over the ranks that construct together; within a
    backward pass, where a checkpoint computes again, over the workers: others have nothing to compute again.

    Args:
        what: the name of what is constructed.
        partitions: partitions or bare mpi4py communicators by name.
        options: everything else that has to be equal on all ranks. The body may replace values.

    Yields:
        The grids of the partitions, in order, all with the same root communicator.
    """
    grids = _resolve_or_tell(what, partitions)
    if torch._C._current_graph_task_id() != -1:
        grids = dict(zip(grids, among_workers([*grids.values()]), strict=True))
    error: Exception | None = None
    try:
        yield list(grids.values())
    except Exception as raised:
        error = raised
    first = next(iter(grids.values()))
    constructors = tuple(dict.fromkeys(rank for grid in grids.values() for rank in grid.constructors))
    compare(what, f"construction of {what}", first.line(constructors), error, grids, options)


def tell(what: str, error: Exception, given: Iterable[object]) -> None:
    """Raise an error on all ranks that construct together on the first partition among the given arguments."""
    known = [grid_of(argument) for argument in given if is_partition(argument)]
    if not known and isinstance(error, TypeError):
        error = TypeError(f"{error}; none of the arguments is a distdl.Partition or an mpi4py intracommunicator")
    first = next((grid for grid in known if grid.known), Grid.unknown())
    compare(what, f"construction of {what}", first.constructing_ranks(), error, {}, {})


constructor = raise_together(tell)
"""A decorator for constructors of layers, and for functions that construct one."""


def partitions_behind_first(
    *names: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for constructors with further partitions as keywords: these may also stand directly behind P_x.

    Args:
        names: the keywords, in the order in which the partitions stand there.
    """

    def decorate(construct: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(construct)
        def wrapped(self: object, *args: object, **kwargs: object) -> None:
            behind, named = list(args[1:]), dict(kwargs)
            expected = [name for name in names if name not in kwargs]
            # If one of these arguments is a partition, all of them are meant to be partitions, right or wrong. A number
            # behind them means that a partition was left out.
            count = len(behind[: len(expected)])
            while count and isinstance(behind[count - 1], int):
                count -= 1
            if any(given is None or is_partition(given) for given in behind[:count]):
                kwargs.update(zip(expected, behind[:count], strict=False))
                behind = behind[count:]
                problem = misfit(construct, (self, *args[:1], *behind), kwargs)
                # What does not fit in either order is for `constructor` to tell.
                if problem is not None and misfit(construct, (self, *args), named) is None:
                    error = TypeError(f"{problem}; partitions stand first: P_x, {', '.join(names)}")
                    tell(type(self).__name__, error, (*args, *named.values()))
                    raise error
            construct(self, *args[:1], *behind, **kwargs)

        return wrapped

    return decorate


def among_workers(grids: list[Grid]) -> list[Grid]:
    """The same grids, on which their workers alone construct layers together.

    So one communicator serves for constructing and for calling. Where some ranks know a layer already and others
    construct it, all of them learn of the difference.
    """
    ranks = tuple(dict.fromkeys(rank for grid in grids for rank in grid.ranks))
    return [grid.among(ranks) if grid.known else grid for grid in grids]


def is_partition(given: object) -> bool:
    """Whether a layer takes this as a partition."""
    return isinstance(given, Partition | Grid | MPI.Comm) and not isinstance(given, MPI.Intercomm)


def grid_of(given: object) -> Grid:
    """The grid of a partition or of a communicator; a grid itself."""
    if isinstance(given, Grid):
        return given
    return given.grid if isinstance(given, Partition) else Partition(given).grid  # type: ignore[arg-type]


def _resolve_or_tell(what: str, partitions: Mapping[str, PartitionLike]) -> dict[str, Grid]:
    """Call `resolve`. If one argument is not a partition, its TypeError is raised on the ranks of another argument."""
    try:
        return resolve(what, partitions)
    except TypeError as error:
        tell(what, error, partitions.values())
        raise


def resolve(what: str, partitions: Mapping[str, PartitionLike]) -> dict[str, Grid]:
    """Grids of one root communicator from what a user passed.

    Grids of partitions that come from one communicator are returned as they are, without communication. Otherwise, as
    with bare communicators, only the workers of a partition know it, and they exchange what they know: collective over
    each of the partitions.

    Raises:
        TypeError: if something is neither a partition nor an mpi4py communicator.
        RuntimeError: if MPI was finalized, or a communicator was freed.
        ValueError: if the workers of one partition cannot learn of another one, because no shared ranks connect them.
    """
    for name, given in partitions.items():
        if not is_partition(given):
            raise TypeError(
                f"{what}: {name} is a {type(given).__name__}; it has to be a distdl.Partition or an mpi4py "
                "intracommunicator"
            )
    if any(isinstance(given, MPI.Comm) for given in partitions.values()):
        refuse_ended(what, None)
    known = {name: grid_of(given) for name, given in partitions.items()}
    roots = [grid.root for grid in known.values()]
    if all(root is None for root in roots) or (None not in roots and all(root == roots[0] for root in roots)):
        return known
    return _discover(what, known)


def _discover(what: str, known: Mapping[str, Grid]) -> dict[str, Grid]:
    for grid in known.values():
        refuse_ended(what, grid.root)
    table = {name: [grid.world_ranks(), grid.shape] for name, grid in known.items() if grid.known}
    if any(MPI.UNDEFINED in ranks for ranks, _ in table.values()):
        raise ValueError(f"{what}: partitions of several communicators may only have ranks of MPI.COMM_WORLD")
    for _ in known:  # each round carries the knowledge across one more partition
        for grid in known.values():
            if grid.active:
                for text in grid.gather(json.dumps(table).encode()):
                    table.update(json.loads(text))
    missing = [name for name in known if name not in table]
    if missing:
        raise ValueError(
            f"{what}: this rank is in {[name for name in known if name in table]}, but no rank of these knows "
            f"{missing}; make all of them from one distdl.Partition, whose ranks know each other"
        )
    constructors = tuple(dict.fromkeys(rank for name in known for rank in table[name][0]))
    everyone = Grid.of(MPI.COMM_WORLD)
    return {
        name: replace(everyone, ranks=tuple(table[name][0]), shape=tuple(table[name][1]), constructors=constructors)
        for name in known
    }
