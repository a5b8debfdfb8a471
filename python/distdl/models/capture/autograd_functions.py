"""Calls of ``torch.autograd.Function.apply`` that something else is called for: a recorder, which writes them down."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from distdl.models.capture.recording import Function
from distdl.torch_compat.autograd import FunctionMeta, SingleLevelFunction

_APPLY = vars(torch.autograd.Function)["apply"]
_IN_PYTHON = isinstance(_APPLY, classmethod)  # before torch 2.14
FunctionClass = type[torch.autograd.Function]


def apply_of(kind: FunctionClass) -> Function:
    """``kind.apply``, whatever is called for it now."""
    function: Function = _APPLY.__get__(None, kind)
    return function


@contextlib.contextmanager
def calling_for_apply(applied: Callable[..., object], is_open: Callable[[], bool]) -> Iterator[None]:
    """Call ``applied(kind, *args)`` for ``kind.apply(*args)``, but where `is_open` says no.

    That includes a ``kind.apply`` which a model has kept, in an attribute or a global name, where torch calls it in
    Python. From 2.14 on torch does not: a kept one raises NotImplementedError.
    """

    def seen(kind: FunctionClass, *args: Any, **kwargs: Any) -> object:
        return applied(kind, *args, **kwargs) if is_open() else end_of_apply(kind)(*args, **kwargs)

    changed: Any = SingleLevelFunction if _IN_PYTHON else torch.autograd.Function
    changed.apply = classmethod(seen)
    if not _IN_PYTHON:
        FunctionMeta.__getattribute__ = _refusing(is_open)
    try:
        yield
    finally:
        if _IN_PYTHON:
            del changed.apply
        else:
            changed.apply = _APPLY
            del FunctionMeta.__getattribute__


def end_of_apply(kind: FunctionClass) -> Function:
    """The innermost ``apply`` of a function: it computes, and saves tensors for the backward pass."""
    function: Function = super(SingleLevelFunction, kind).apply
    return function


def _refusing(is_open: Callable[[], bool]) -> Callable[[Any, str], object]:
    def attribute(kind: Any, name: str) -> object:
        attribute = type.__getattribute__(kind, name)
        if name != "forward" or not is_open():
            return attribute

        def refused(*args: object) -> None:
            raise NotImplementedError(
                f"the model calls a {kind.__name__}.apply that it has kept, which cannot be recorded with this version "
                f"of torch; write {kind.__name__}.apply where it is called"
            )

        return refused

    return attribute
