"""Transforms of real tensors, whose backward passes need only the shape of the input.

torch keeps all of it. In one process the input often serves another operation as well, and takes no further memory. A
worker that receives it for the transform alone would keep it until the backward pass.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from distdl.torch_compat.autograd import takes_hooks
from distdl.torch_compat.modes import is_compiling

_P = ParamSpec("_P")
_R = TypeVar("_R")


def keeping_sizes(transform: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function of torch.fft that keeps the shape of its input in place of its values."""

    @functools.wraps(transform)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _only_sizes():
            return transform(*args, **kwargs)

    return call


def _only_sizes() -> contextlib.AbstractContextManager[object]:
    if is_compiling() or not takes_hooks():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(
        lambda saved: (saved.new_empty(()), saved.shape), lambda kept: kept[0].expand(kept[1])
    )
