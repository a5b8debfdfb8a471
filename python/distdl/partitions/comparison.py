"""Comparing the calls of ranks, so that an error on one rank is raised on all of them.

A comparison is one small reduction. Only if it finds a difference do the ranks exchange their views.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from distdl import _core
from distdl.partitions.grid import Grid, refuse_ended
from distdl.process.legacy_paths import legacy_hint
from distdl.texts import safe_text


class HabitWarning(UserWarning):
    """A habit of single-process programs, which gives other numbers on blocks."""


# Exceptions of these types keep their type when all ranks raise them; any other becomes a RuntimeError.
_RAISED: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        TypeError, ValueError, IndexError, RuntimeError, NotImplementedError, ArithmeticError, OverflowError,
        FloatingPointError, ZeroDivisionError, AssertionError, OSError, FileNotFoundError, FileExistsError,
        IsADirectoryError, NotADirectoryError, PermissionError, MemoryError, torch.OutOfMemoryError,
        torch.linalg.LinAlgError,
        HabitWarning,  # where warnings are errors
    )
}  # fmt: skip


@dataclass(frozen=True)
class View:
    """The call that a rank is about to make, or its error."""

    operation: str = ""
    partitions: tuple[tuple[str, list[int], list[int]], ...] = ()  # name, shape, ranks
    options: tuple[tuple[str, str], ...] = ()
    raised: str = ""
    text: str = ""
    place: int = 0  # of the error: of several, all ranks raise the first

    @classmethod
    def of_error(cls, error: Exception, place: int = 0) -> View:
        return cls(raised=type(error).__name__, text=str(error), place=place)

    def to_json(self) -> str:
        return json.dumps([self.operation, self.partitions, self.options, self.raised, self.text, self.place])

    @classmethod
    def from_json(cls, text: str) -> View:
        operation, partitions, options, *error = json.loads(text)
        return cls(operation, tuple(map(tuple, partitions)), tuple(map(tuple, options)), *error)

    def __str__(self) -> str:
        partitions = [f"{name} of shape {shape} on ranks {ranks}" for name, shape, ranks in self.partitions]
        return f"{self.operation}({', '.join(partitions + [f'{name}={value}' for name, value in self.options])})"


@contextmanager
def agreed(operation: str, grid: Grid, describe: Callable[[], str]) -> Iterator[None]:
    """Raise on all workers an exception that the body raises on any of them.

    Args:
        operation: its name, for messages.
        grid: the workers. Collective over them.
        describe: describes this worker's arguments after the body; if texts differ, all workers raise ValueError.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    voters = grid.line(grid.ranks) if grid.active else Grid.unknown()
    compare(
        operation,
        operation,
        voters,
        error,
        {"the partition": grid},
        {} if error is not None or not (text := describe()) else {"arguments": text},
    )


_is_compared: ContextVar[bool] = ContextVar("_is_compared", default=False)


@contextmanager
def compared_once(operation: str, grid: Grid) -> Iterator[None]:
    """Compare nothing within the body, since the workers have agreed on all that it constructs.

    An exception in the body is raised on all workers. Collective over them.
    """
    token = _is_compared.set(True)
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    finally:
        _is_compared.reset(token)
    compare(operation, operation, grid, error, {}, {})


def gather_or_raise(operation: str, grid: Grid, make: Callable[[], bytes]) -> list[bytes]:
    """Every worker's result of ``make``, in worker order. An error on any worker is raised on all of them.

    A class that not all ranks can raise is kept if all workers have the same error.
    Collective over the workers, in one exchange.
    """
    own: Exception | None = None
    error: Exception | None = None
    try:
        message = b"+" + make()
    except Exception as raised:
        own, error = raised, error_for_all(operation, {}, raised)
        message = b"-" + View(str(type(own)), raised=type(error).__name__, text=str(error)).to_json().encode()
    messages = grid.gather(message)
    if own is not None and type(own).__name__ not in _RAISED and len({*messages}) == 1:
        raise shown_by(own, grid.ranks[0], grid.me)  # in its class, which all ranks know
    failed = {rank: message for rank, message in zip(grid.ranks, messages, strict=True) if message[:1] == b"-"}
    _raise_first({rank: View.from_json(message[1:].decode()) for rank, message in failed.items()}, error, grid.me)
    return [message[1:] for message in messages]


def compare(
    operation: str,
    call: str,
    voters: Grid,
    error: Exception | None,
    grids: Mapping[str, Grid],
    options: Mapping[str, object],
) -> None:
    """Raise one voter's error on all voters, or a ValueError if ranks of the same grid differ in grids or options.

    Args:
        operation: its name, for messages.
        call: its name, for the message if ranks are in different calls.
        voters: the ranks that take part. Collective over them; other ranks only raise their errors.
        error: the error of this rank, or None.
        grids: the partitions by name.
        options: all other arguments that have to be equal.
    """
    if error is not None:
        error = error_for_all(operation, options, error)
    if not voters.active or _is_compared.get():
        if error is not None:
            raise error
        return
    refuse_ended(operation, voters.root)
    partitions = tuple((name, list(grid.shape), list(grid.ranks)) for name, grid in grids.items())
    view_here = View(operation, partitions, tuple((name, safe_text(value)) for name, value in options.items()))
    views = differing_views(call, voters.host_exchange(), view_here, error)
    if views is None:
        return
    for view in {id(view): view for view in views.values()}.values():
        involved = {rank for _, _, ranks in view.partitions for rank in ranks}
        if any(views[rank] is not view for rank in involved):
            refuse_difference(views)


def differing_views(
    call: str, exchange: _core.HostExchange, view: View, error: Exception | None, place: int = 0
) -> dict[int, View] | None:
    """The views of all ranks of an exchange, equal ones as one object; None if all are equal to this rank's.

    An error on any rank is raised on all of them, and of several the first by place.

    Args:
        call: its name, for the message if ranks are in different calls.
        error: the error of this rank, in this place, or None.

    Collective over the ranks of the exchange.
    """
    if error is not None:
        view = View.of_error(error, place)
    is_same, texts = exchange.compare(call, view.to_json())
    if is_same:
        if error is not None:
            raise shown_by(error, exchange.ranks[0], exchange.rank)
        return None
    known = {text: View.from_json(text) for text in set(texts)}
    views = dict(zip(exchange.ranks, map(known.__getitem__, texts), strict=True))
    _raise_first(views, error, exchange.rank, place)
    return views


def shown_by(error: Exception, rank: int, me: int) -> Exception:
    """An error that all ranks raise, and that one rank shows if none catches it: see process/ending.py."""
    error.__dict__["is_shown_by_another"] = rank != me
    return error


def _raise_first(views: Mapping[int, View], error: Exception | None, me: int, place: int = 0) -> None:
    """Raise the first error of all ranks, if any; `error` is that of this rank, `me`, in this place."""
    failed = [rank for rank, view in views.items() if view.raised]
    if not failed:
        return
    rank = min(failed, key=lambda rank: views[rank].place)  # of equal places, the lowest
    view = views[rank]
    error = error if view.place == place else None
    text = view.text if error is not None else f"{view.text} (raised on rank {rank})"
    raise shown_by(_RAISED.get(view.raised, RuntimeError)(text), rank, me) from error


def refuse_difference(views: Mapping[int, View]) -> NoReturn:
    """Raise ValueError for calls that differ."""
    names = " and ".join(sorted({view.operation for view in views.values()}))
    raise ValueError(f"{names}: the ranks ask for different things; {_ranks_by_call(views)}")


_LONGEST = 200  # characters of an option; longer texts are cut around their first difference


def _cut_to_difference(views: Sequence[View]) -> list[View]:
    texts: dict[str, list[str]] = {}
    for name, text in (option for view in views for option in view.options):
        texts.setdefault(name, []).append(text)
    starts = {name: max(0, _first_difference(values) - _LONGEST // 4) for name, values in texts.items()}
    return [
        replace(view, options=tuple((name, _cut(text, starts[name])) for name, text in view.options)) for view in views
    ]


def _first_difference(texts: Sequence[str]) -> int:
    low, high = min(texts), max(texts)
    shortest = min(len(low), len(high))
    return 0 if low == high else next((i for i in range(shortest) if low[i] != high[i]), shortest)


def _cut(text: str, start: int = 0) -> str:
    if len(text) <= _LONGEST:
        return text
    stop = start + _LONGEST // 2
    return ("..." if start else "") + text[start:stop] + ("..." if stop < len(text) else "")


def _ranks_by_call(views: Mapping[int, View]) -> str:
    distinct = {id(view): view for view in views.values()}
    texts = dict(zip(distinct, map(str, _cut_to_difference([*distinct.values()])), strict=True))
    ranks_of: dict[str, list[int]] = {}
    for rank, view in views.items():
        ranks_of.setdefault(texts[id(view)], []).append(rank)
    return "; ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in ranks_of.items())


def error_for_all(operation: str, options: Mapping[str, object], error: Exception) -> Exception:
    """The error in a type that all ranks can raise, with the operation and its values in the message."""
    advice = legacy_hint(operation, options)
    kind, text = _RAISED.get(type(error).__name__, RuntimeError), f"{safe_text(error, str)}{advice}"
    if type(error).__name__ not in _RAISED:  # KeyError(3) says no more than "3"
        text = f"{type(error).__name__}: {text}"
    if type(error) is kind and operation in text and not advice:
        return error
    values = ", ".join(f"{name}={_cut(_line(value))}" for name, value in options.items())
    named = kind(text if operation in text else f"{operation}({values}): {text}" if values else f"{operation}: {text}")
    if error.__traceback__ is not None:
        named.__cause__ = error
    return named


def _line(value: object) -> str:
    """The text of a value; the type alone of what takes several lines, such as a model."""
    text = safe_text(value)
    return type(value).__name__ if "\n" in text else text
