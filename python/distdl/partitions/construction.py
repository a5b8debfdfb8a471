"""Constructing layers on all ranks: with the same partitions and options, or with an exception on all of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from mpi4py import MPI

from distdl.partitions.comparison import compare
from distdl.partitions.grid import Grid, refuse_ended
from distdl.partitions.partition import Partition
from distdl.partitions.signatures import misfit, raise_together
from distdl.torch_compat.autograd import is_in_backward

PartitionLike: TypeAlias = Partition | Grid | MPI.Comm
"""Arguments that layers accept as a partition."""


@contextmanager
def constructing(
    operation: str, partitions: Mapping[str, PartitionLike], options: Mapping[str, object]
) -> Iterator[list[Grid]]:
    """Check a construction on all ranks before anything is made.

    The body checks this rank's arguments. An exception in it is raised on all ranks; so is a ValueError if ranks that
    share a partition differ in partitions or options. Collective over the ranks that construct together; in a backward
    pass, where an activation checkpoint computes again, over the workers.

    Args:
        operation: the name of the layer or function.
        partitions: partitions or communicators by name.
        options: all other arguments that have to be equal. The body may replace values.

    Yields:
        The grids of the partitions, in order, with the same root communicator.
    """
    grids = _resolve_on_all_ranks(operation, partitions)
    if is_in_backward():
        grids = dict(zip(grids, among_workers([*grids.values()]), strict=True))
    error: Exception | None = None
    try:
        yield list(grids.values())
    except Exception as raised:
        error = raised
    first = next(iter(grids.values()))
    constructors = tuple(dict.fromkeys(rank for grid in grids.values() for rank in grid.constructors))
    compare(operation, f"construction of {operation}", first.line(constructors), error, grids, options)


def tell(operation: str, error: Exception, arguments: Iterable[object]) -> None:
    """Raise an error on all constructors of the first partition among the arguments."""
    grids = [grid_of(argument) for argument in arguments if is_partition(argument)]
    if not grids and isinstance(error, TypeError):
        error = TypeError(f"{error}; none of the arguments is a distdl.Partition or an mpi4py intracommunicator")
    first = next((grid for grid in grids if grid.known), Grid.unknown())
    compare(operation, f"construction of {operation}", first.constructing_ranks(), error, {}, {})


constructor = raise_together(tell)
"""A decorator for constructors of layers, and for functions that construct layers."""


def partitions_behind_first(
    *names: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for constructors with further partitions as keywords, which may also follow P_x by position.

    Args:
        names: the keywords, in the order of the positions.
    """

    def decorate(construct: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(construct)
        def wrapped(self: object, *args: object, **kwargs: object) -> None:
            after_first, named = list(args[1:]), dict(kwargs)
            expected = [name for name in names if name not in kwargs]
            # If any of these arguments is a partition, all are meant to be partitions. A number after them means that a
            # partition was left out.
            count = len(after_first[: len(expected)])
            while count and isinstance(after_first[count - 1], int):
                count -= 1
            if any(argument is None or is_partition(argument) for argument in after_first[:count]):
                kwargs.update(zip(expected, after_first[:count], strict=False))
                after_first = after_first[count:]
                problem = misfit(construct, (self, *args[:1], *after_first), kwargs)
                # If the arguments fit in neither order, `constructor` raises.
                if problem is not None and misfit(construct, (self, *args), named) is None:
                    error = TypeError(f"{problem}; partitions stand first: P_x, {', '.join(names)}")
                    tell(type(self).__name__, error, (*args, *named.values()))
                    raise error
            construct(self, *args[:1], *after_first, **kwargs)

        return wrapped

    return decorate


def among_workers(grids: list[Grid]) -> list[Grid]:
    """The same grids, whose workers alone construct layers together.

    So constructing uses the communicator of calls, and ranks notice if only some of them construct.
    """
    ranks = tuple(dict.fromkeys(rank for grid in grids for rank in grid.ranks))
    return [grid.among(ranks) if grid.known else grid for grid in grids]


def is_partition(argument: object) -> bool:
    """Whether a layer accepts the argument as a partition."""
    return isinstance(argument, Partition | Grid | MPI.Comm) and not isinstance(argument, MPI.Intercomm)


def grid_of(partition: object) -> Grid:
    """The grid of a partition or of a communicator; a grid itself."""
    if isinstance(partition, Grid):
        return partition
    return partition.grid if isinstance(partition, Partition) else Partition(partition).grid  # type: ignore[arg-type]


def _resolve_on_all_ranks(operation: str, partitions: Mapping[str, PartitionLike]) -> dict[str, Grid]:
    """Call `resolve`. Its TypeError for an argument is raised on the ranks of another argument, too."""
    try:
        return resolve(operation, partitions)
    except TypeError as error:
        tell(operation, error, partitions.values())
        raise


def resolve(operation: str, partitions: Mapping[str, PartitionLike]) -> dict[str, Grid]:
    """The grids of partitions that a user passed, with the same root communicator.

    Partitions that come from one communicator take no communication. Otherwise, as with bare communicators, workers
    exchange their knowledge of the partitions: collective over each of them.

    Raises:
        TypeError: if an argument is neither a partition nor an mpi4py communicator.
        RuntimeError: if MPI was finalized, or a communicator was freed.
        ValueError: if no shared ranks connect the partitions.
    """
    for name, partition in partitions.items():
        if not is_partition(partition):
            raise TypeError(
                f"{operation}: {name} is a {type(partition).__name__}; it has to be a distdl.Partition or an mpi4py "
                "intracommunicator"
            )
    if any(isinstance(partition, MPI.Comm) for partition in partitions.values()):
        refuse_ended(operation, None)
    known = {name: grid_of(partition) for name, partition in partitions.items()}
    roots = [grid.root for grid in known.values()]
    if all(root is None for root in roots) or (None not in roots and all(root == roots[0] for root in roots)):
        return known
    return _discover(operation, known)


def _discover(operation: str, known: Mapping[str, Grid]) -> dict[str, Grid]:
    for grid in known.values():
        refuse_ended(operation, grid.root)
    table = {name: [grid.world_ranks(), grid.shape] for name, grid in known.items() if grid.known}
    if any(MPI.UNDEFINED in ranks for ranks, _ in table.values()):
        raise ValueError(f"{operation}: partitions of several communicators may only have ranks of MPI.COMM_WORLD")
    for _ in known:  # each round carries the knowledge across a further partition
        for grid in known.values():
            if grid.active:
                for text in grid.gather(json.dumps(table).encode()):
                    table.update(json.loads(text))
    missing = [name for name in known if name not in table]
    if missing:
        raise ValueError(
            f"{operation}: this rank is in {[name for name in known if name in table]}, but no rank of these knows "
            f"{missing}; make all of them from one distdl.Partition, whose ranks know each other"
        )
    constructors = tuple(dict.fromkeys(rank for name in known for rank in table[name][0]))
    world = Grid.of(MPI.COMM_WORLD)
    return {
        name: replace(world, ranks=tuple(table[name][0]), shape=tuple(table[name][1]), constructors=constructors)
        for name in known
    }
