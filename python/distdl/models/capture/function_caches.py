"""Functions that keep their results for their next calls (``functools.cache``)."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import cast

import torch

from distdl.models.capture.recording import Arguments
from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.trees import tree_leaves

_CACHED_BY_CODE: dict[CodeType, bool] = {}


def is_kept_by_a_function(args: Arguments, kwargs: dict[str, object]) -> bool:
    """Whether a call of tensors with values, or of none, stands in a function that keeps its results."""
    if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
        return False
    return any(map(_is_cached, _frames()))


def _frames() -> Iterator[FrameType]:
    """The frames of the model's functions, up to its innermost module."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name not in ("forward", "_wrapped_call_impl"):
        yield frame
        frame = frame.f_back


def _is_cached(frame: FrameType) -> bool:
    code = frame.f_code
    arguments = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if any(isinstance(argument, torch.Tensor | list | dict) for argument in arguments):
        return False  # no keys of a table
    if code not in _CACHED_BY_CODE:
        _CACHED_BY_CODE[code] = any(isinstance(user, functools._lru_cache_wrapper) for user in _users(frame))
    return _CACHED_BY_CODE[code]


def _users(frame: FrameType) -> Iterator[object]:
    """Objects that hold the function of a frame: where its name leads, or else (slow) of all objects."""
    code, holder = frame.f_code, cast(object, frame)
    path = getattr(code, "co_qualname", "")  # from Python 3.11 on
    for place, name in enumerate(path.split(".")):
        holder = inspect.getattr_static(holder, name, None) if place else frame.f_globals.get(name)
    if isinstance(holder, classmethod | staticmethod):
        holder = holder.__func__
    if holder is not None:
        yield from (holder, getattr(holder, "__wrapped__", None))
        for cell in getattr(holder, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # of an empty cell
                yield cell.cell_contents
        return
    functions = [each for each in gc.get_referrers(code) if isinstance(each, FunctionType)]
    yield from (user for function in functions for user in gc.get_referrers(function))
