"""How ranks compare what they are about to do together, so that an error on one rank is raised on all of them.

The comparison is one small reduction. Only where it finds a difference do the ranks send each other their views.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn, ParamSpec, TypeVar

from distdl.collective.grid import Grid, refuse_ended
from distdl.process.further_paths import hint

Given = ParamSpec("Given")
Result = TypeVar("Result")


class HabitWarning(UserWarning):
    """A layer notices a habit of programs of one process, which gives other numbers on blocks."""


# Exceptions of these types keep their type when all ranks raise them; any other becomes a RuntimeError.
_RAISED: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        TypeError,
        ValueError,
        IndexError,
        RuntimeError,
        NotImplementedError,
        OverflowError,
        ZeroDivisionError,
        OSError,
        FileNotFoundError,
        FileExistsError,
        IsADirectoryError,
        NotADirectoryError,
        PermissionError,
        HabitWarning,  # where warnings are errors
    )
}


@dataclass(frozen=True)
class View:
    """The call that a rank is about to make, or the exception that keeps it from making it."""

    what: str = ""
    partitions: tuple[tuple[str, list[int], list[int]], ...] = ()  # name, shape, ranks
    options: tuple[tuple[str, str], ...] = ()
    raised: str = ""
    text: str = ""

    def to_json(self) -> str:
        """The text that other ranks receive. Two views are equal where their texts are."""
        return json.dumps([self.what, self.partitions, self.options, self.raised, self.text])

    @classmethod
    def from_json(cls, text: str) -> View:
        """The view that another rank sent."""
        what, partitions, options, raised, error = json.loads(text)
        return cls(what, tuple(map(tuple, partitions)), tuple(map(tuple, options)), raised, error)

    def __str__(self) -> str:
        partitions = [f"{name} of shape {shape} on ranks {ranks}" for name, shape, ranks in self.partitions]
        return f"{self.what}({', '.join(partitions + [f'{name}={value}' for name, value in self.options])})"


@contextmanager
def agreed(what: str, grid: Grid, describe: Callable[[], str]) -> Iterator[None]:
    """Raise on all workers an exception that the body raises on any of them.

    Args:
        what: the operation, as messages call it.
        grid: the workers.
        describe: describes this worker's arguments after the body; all workers raise a ValueError if the texts differ.

    Collective over the workers.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    voters = grid.line(grid.ranks) if grid.active else Grid.unknown()
    compare(what, what, voters, error, {"the partition": grid}, {} if error is not None else {"arguments": describe()})


def gather_or_raise(what: str, grid: Grid, make: Callable[[], bytes]) -> list[bytes]:
    """Every worker's bytes, in worker order. What `make` raises on any worker is raised on all of them.

    Args:
        what: the operation, as messages call it.
        grid: the workers. Collective over them, in one exchange.
        make: makes this worker's bytes.
    """
    error: Exception | None = None
    try:
        mine = b"+" + make()
    except Exception as raised:
        error = naming(what, {}, raised)
        mine = b"-" + View(raised=type(error).__name__, text=str(error)).to_json().encode()
    everyone = grid.gather(mine)
    failed = {rank: one for rank, one in zip(grid.ranks, everyone, strict=True) if one[:1] == b"-"}
    _raise_first({rank: View.from_json(one[1:].decode()) for rank, one in failed.items()}, error)
    return [one[1:] for one in everyone]


def compare(
    what: str,
    call: str,
    voters: Grid,
    error: Exception | None,
    grids: Mapping[str, Grid],
    options: Mapping[str, object],
) -> None:
    """Raise one voter's error on all voters, or a ValueError if ranks of the same grid differ in grids or options.

    Args:
        what: the operation, as messages call it.
        call: the operation, as the message calls it where ranks are in different calls.
        voters: the ranks that take part. A rank that is none of them raises its own error alone.
        error: the error of this rank, or None.
        grids: the partitions by name.
        options: everything else that has to be equal.

    Collective over the voters.
    """
    if error is not None:
        error = naming(what, options, error)
    if not voters.active:  # nobody to compare with
        if error is not None:
            raise error
        return
    refuse_ended(what, voters.root)
    partitions = tuple((name, list(grid.shape), list(grid.ranks)) for name, grid in grids.items())
    mine = View(what, partitions, tuple((name, shown(value)) for name, value in options.items()))
    views = exchange_views(call, voters, mine, error)
    for view in views.values():
        involved = {rank for _, _, ranks in view.partitions for rank in ranks}
        if any(views[rank] != view for rank in involved):
            refuse_difference(views)


def exchange_views(call: str, voters: Grid, mine: View, error: Exception | None) -> dict[int, View]:
    """The views of all voters by rank. One voter's error is raised on all voters. Collective over the voters.

    Args:
        call: the operation, as the message calls it where ranks are in different calls.
        voters: the ranks that take part.
        mine: what this rank is about to do.
        error: what keeps it from doing so, or None.
    """
    if error is not None:
        mine = View(raised=type(error).__name__, text=str(error))
    same, texts = voters.host_exchange().compare(call, mine.to_json())
    if same and error is not None:
        raise error
    views = dict(zip(voters.ranks, [mine] * voters.size if same else map(View.from_json, texts), strict=True))
    _raise_first(views, error)
    return views


def _raise_first(views: Mapping[int, View], error: Exception | None) -> None:
    """Raise what the first of the ranks raised that raised something; `error` is what this rank raised."""
    for rank, view in views.items():
        if view.raised:
            text = view.text if error is not None else f"{view.text} (raised on rank {rank})"
            told = _RAISED.get(view.raised, RuntimeError)(text)
            told.__dict__["is_told"] = True
            raise told from error


def refuse_difference(views: Mapping[int, View]) -> NoReturn:
    """Raise ValueError on ranks that ask for different things."""
    names = " and ".join(sorted({view.what for view in views.values()}))
    raise ValueError(f"{names}: the ranks ask for different things; {_by_text(views)}")


_LONGEST = 200  # characters of an option, of which the place of the first difference is shown


def _around_difference(views: Sequence[View]) -> list[View]:
    """The views with long options cut to where they begin to differ."""
    texts: dict[str, list[str]] = {}
    for name, text in (option for view in views for option in view.options):
        texts.setdefault(name, []).append(text)
    starts = {name: max(0, _first_difference(several) - _LONGEST // 4) for name, several in texts.items()}
    return [
        replace(view, options=tuple((name, _cut(text, starts[name])) for name, text in view.options)) for view in views
    ]


def _first_difference(texts: Sequence[str]) -> int:
    """The first place at which texts differ; 0 for equal ones."""
    low, high = min(texts), max(texts)
    shortest = min(len(low), len(high))
    return 0 if low == high else next((i for i in range(shortest) if low[i] != high[i]), shortest)


def _cut(text: str, start: int = 0) -> str:
    if len(text) <= _LONGEST:
        return text
    stop = start + _LONGEST // 2
    return ("..." if start else "") + text[start:stop] + ("..." if stop < len(text) else "")


def _by_text(views: Mapping[int, View]) -> str:
    views = dict(zip(views, _around_difference(list(views.values())), strict=True))
    ranks_of: dict[str, list[int]] = {}
    for rank, view in views.items():
        ranks_of.setdefault(str(view), []).append(rank)
    return "; ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in ranks_of.items())


def shown(value: object, show: Callable[[object], str] = repr) -> str:
    """The text of a value, also of one that raises when it is asked for its text: on one rank, others would wait."""
    try:
        return show(value)
    except Exception as error:
        return f"<{type(value).__name__} whose {show.__name__} raises {type(error).__name__}>"


def naming(what: str, options: Mapping[str, object], error: Exception) -> Exception:
    """The error as one of the types that all ranks can raise, with the operation and its values in the message."""
    more = hint(what, options)
    kind, text = _RAISED.get(type(error).__name__, RuntimeError), f"{shown(error, str)}{more}"
    if type(error).__name__ not in _RAISED:  # KeyError(3) says no more than "3"
        text = f"{type(error).__name__}: {text}"
    if type(error) is kind and what in text and not more:
        return error
    values = ", ".join(f"{name}={_cut(shown(value))}" for name, value in options.items())
    named = kind(text if what in text else f"{what}({values}): {text}" if values else f"{what}: {text}")
    if error.__traceback__ is not None:
        named.__cause__ = error
    return named


def raise_together(
    tell: Callable[[str, Exception, tuple[object, ...]], None],
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """A decorator for functions that ranks call together: arguments that do not fit the signature raise on all ranks.

    Python alone would raise on this rank only, and the other ranks would wait for it.

    Args:
        tell: raises such an error on all ranks that wait for this rank. It is passed the name of the function or class,
            the error and the arguments.
    """

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        @functools.wraps(function)
        def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                # Arguments may fit in another order than that of the signature, and another rank's not.
                problem = None if hasattr(error, "is_told") else misfit(function, args, kwargs)
                if problem is None:
                    raise
            is_constructor = bool(args) and function.__name__ == "__init__"
            name = type(args[0]).__name__ if is_constructor else function.__name__
            problem = TypeError(f"{problem}{hint(name, kwargs, args[is_constructor:])}")
            tell(name, problem, (*args, *kwargs.values()))
            raise problem

        return wrapped

    return decorate


def misfit(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> TypeError | None:
    """Why these arguments do not fit the signature; None if they do."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return TypeError(str(error))  # without the traceback, which shows how the signature was asked
    return None
