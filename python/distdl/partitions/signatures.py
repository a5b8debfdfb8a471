"""Arguments that do not fit a function's signature, which raise on all ranks that call it together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from distdl.process.legacy_paths import legacy_hint

Params = ParamSpec("Params")
Returned = TypeVar("Returned")


def raise_together(
    tell: Callable[[str, Exception, tuple[object, ...]], None],
) -> Callable[[Callable[Params, Returned]], Callable[Params, Returned]]:
    """A decorator for functions that ranks call together: arguments that do not fit the signature raise on all ranks.

    Args:
        tell: raises an error on all ranks that wait for this rank, from the name of the function or class, the error
            and the arguments.
    """

    def decorate(function: Callable[Params, Returned]) -> Callable[Params, Returned]:
        @functools.wraps(function)
        def wrapped(*args: Params.args, **kwargs: Params.kwargs) -> Returned:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                # The arguments may fit in an order other than the signature's, and another rank's may not.
                problem = None if hasattr(error, "is_shown_by_another") else misfit(function, args, kwargs)
                if problem is None:
                    raise
            is_constructor = bool(args) and function.__name__ == "__init__"
            name = type(args[0]).__name__ if is_constructor else function.__name__
            problem = TypeError(f"{problem}{legacy_hint(name, kwargs, args[is_constructor:])}")
            tell(name, problem, (*args, *kwargs.values()))
            raise problem

        return wrapped

    return decorate


def misfit(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> TypeError | None:
    """Why these arguments do not fit the signature; None if they do."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return TypeError(str(error))  # without the traceback of inspect
    return None
