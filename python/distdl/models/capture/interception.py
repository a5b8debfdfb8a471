"""Intercept calls that torch's function modes do not see: of modules, scripts and autograd functions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch

from distdl.models.capture.autograd_functions import calling_for_apply
from distdl.models.capture.recording import Arguments, Function, Options


@contextlib.contextmanager
def intercepted_calls(
    call_module: Callable[[Function, torch.nn.Module, Arguments, Options], object],
    apply: Callable[..., object],
    is_open: Callable[[], bool],
) -> Iterator[None]:
    """Hand calls to a recorder.

    Args:
        call_module: takes the call of each module: ``call_module(run, module, args, kwargs)``.
        apply: takes the call of each ``torch.autograd.Function.apply``: ``apply(kind, *args)``.
        is_open: whether functions called now are to be seen.
    """
    call, call_script = torch.nn.Module.__call__, torch.jit.ScriptFunction.__call__

    def of_module(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
        return call_module(functools.partial(call, module), module, args, kwargs)

    def of_script(function: torch.jit.ScriptFunction, *args: object, **kwargs: object) -> object:
        original = getattr(function, "_torchdynamo_inline", None)  # which torch.compile calls as well
        if original is None or not is_open():
            return call_script(function, *args, **kwargs)
        return original(*args, **kwargs)

    torch.nn.Module.__call__, torch.jit.ScriptFunction.__call__ = of_module, of_script
    try:
        with calling_for_apply(apply, is_open):
            yield
    finally:
        torch.nn.Module.__call__, torch.jit.ScriptFunction.__call__ = call, call_script
