"""How ranks do together what is no operator: what is wrong on one of them raises on all.

They compare what they are about to do in one small reduction. Only if it differs, they tell each other.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mpi4py import MPI

from distdl._load import _core

if TYPE_CHECKING:
    from distdl.partition import Partition

Given = ParamSpec("Given")
Result = TypeVar("Result")

# What is raised on all ranks for an exception of one of them; RuntimeError for all others.
_RAISED = {
    kind.__name__: kind
    for kind in (TypeError, ValueError, RuntimeError, NotImplementedError, OverflowError, ZeroDivisionError)
}


@contextmanager
def agreed(what: str, partition: Partition, describe: Callable[[], str]) -> Iterator[None]:
    """Raise on all workers of a partition what the body raises on one, or a ValueError if their descriptions differ."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    root, voters = (partition._root, partition._ranks) if partition.active else (None, ())
    members = {"the partition": [partition._shape, partition._ranks]}
    compare(what, what, root, voters, error, members, {} if error is not None else {"arguments": describe()})


def compare(
    what: str,
    call: str,
    root: MPI.Comm | None,
    voters: tuple[int, ...],
    error: Exception | None,
    partitions: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Raise on all voters what one of them met, or a ValueError if voters of one of their partitions differ.

    Args:
        what: the operation, as messages call it.
        call: the same, as the list of a mismatch of calls has it.
        root, voters: these ranks of this communicator take part. None: nobody does.
        error: what this rank met.
        partitions: (shape, ranks) by name.
        options: everything else that has to be equal.
    """
    if error is not None:
        error = _naming(what, options, error)
    if root is None:  # nobody to compare with
        if error is not None:
            raise error
        return
    if MPI.Is_finalized() or root == MPI.COMM_NULL:  # known to all ranks; MPI would end the process
        raise RuntimeError(f"{what}: the communicator of the partitions was freed, or MPI was finalized")
    mine: dict[str, Any] = {"what": what, "partitions": partitions, "options": {k: repr(v) for k, v in options.items()}}
    if error is not None:
        mine = {"raised": type(error).__name__, "text": str(error)}
    same, texts = _core.HostExchange(root, list(voters)).compare(call, json.dumps(mine, sort_keys=True))
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


def _naming(what: str, options: Mapping[str, Any], error: Exception) -> Exception:
    """An error of a kind that can be raised on all ranks, and that names the operation and the values."""
    kind, text = _RAISED.get(type(error).__name__, RuntimeError), str(error)
    if type(error) is kind and what in text:
        return error
    values = ", ".join(f"{name}={value!r}" for name, value in options.items())
    named = kind(f"{what}({values}): {text}" if values else f"{what}: {text}")
    named.__cause__ = error
    return named


def telling(
    tell: Callable[[str, Exception, tuple[Any, ...]], None],
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """A decorator for what ranks call together. Arguments that do not fit the signature would raise on this rank alone.

    Args:
        tell: raises such an error on all ranks that wait for this one; called with the name of what was called, the
            error and the arguments.
    """

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        @functools.wraps(function)
        def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except TypeError:
                problem = misfit(function, args, kwargs)
                if problem is not None:
                    constructs = args and function.__name__ in ("__init__", "_set_up")
                    name = type(args[0]).__name__ if constructs else function.__name__
                    tell(name, problem, (*args, *kwargs.values()))
                raise

        return wrapped

    return decorate


def misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TypeError | None:
    """Why these arguments do not fit the signature; None if they do."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return error
    return None


def _differences(views: Mapping[int, Any]) -> str:
    by_text: dict[str, list[int]] = {}
    for rank, view in views.items():
        partitions = [
            f"{name} of shape {shape} on ranks {ranks}" for name, (shape, ranks) in view["partitions"].items()
        ]
        options = [f"{name}={value}" for name, value in view["options"].items()]
        by_text.setdefault(f"{view['what']}({', '.join(partitions + options)})", []).append(rank)
    return "; ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in by_text.items())
