"""Intercept calls that torch's function modes do not see: of modules, scripts, checks and autograd functions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from distdl.models.capture.recording import Arguments, Function, Options
from distdl.torch_compat.autograd import FunctionMeta, SingleLevelFunction
from distdl.torch_compat.fake import FakeTensor
from distdl.torch_compat.operators import Message, TensorCheck, assert_async, tensor_checks_by
from distdl.torch_compat.transforms import batching

_APPLY = vars(torch.autograd.Function)["apply"]
_IN_PYTHON = isinstance(_APPLY, classmethod)  # before torch 2.14
FunctionClass = type[torch.autograd.Function]


def apply_of(kind: FunctionClass) -> Function:
    """``kind.apply``, even if calls of it are intercepted."""
    function: Function = _APPLY.__get__(None, kind)
    return function


@contextlib.contextmanager
def _calling_for_apply(applied: Callable[..., object], is_open: Callable[[], bool]) -> Iterator[None]:
    """Call ``applied(kind, *args)`` for ``kind.apply(*args)`` while `is_open` says so.

    This includes a ``kind.apply`` that a model has kept, in an attribute or a global name. From 2.14 on torch does not
    call it in Python, but the function's ``forward``.
    """

    def seen(kind: FunctionClass, *args: Any, **kwargs: Any) -> object:
        return applied(kind, *args, **kwargs) if is_open() else end_of_apply(kind)(*args, **kwargs)

    changed: Any = SingleLevelFunction if _IN_PYTHON else torch.autograd.Function
    changed.apply = classmethod(seen)
    if not _IN_PYTHON:
        FunctionMeta.__getattribute__ = _seeing_forward(applied, is_open)
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


def _seeing_forward(
    applied: Callable[..., object], is_open: Callable[[], bool]
) -> Callable[[FunctionClass, str], object]:
    def attribute(kind: FunctionClass, name: str) -> object:
        attribute = type.__getattribute__(kind, name)
        if name != "forward" or not is_open():
            return attribute

        def seen(*args: Any, **kwargs: Any) -> object:
            if not args or not hasattr(args[0], "next_functions"):  # whether gradients are recorded is not known here
                if kind.setup_context is SingleLevelFunction.setup_context:  # called directly
                    return attribute(*args, **kwargs)
                raise NotImplementedError(
                    f"the model calls a {kind.__name__}.apply that it has kept, which cannot be recorded with this "
                    f"version of torch as it has a setup_context; write {kind.__name__}.apply where it is called"
                )
            context, *inputs = args
            with torch.set_grad_enabled(bool(context.next_functions)):
                return applied(kind, *inputs, **kwargs)

        return seen

    return attribute


@contextlib.contextmanager
def intercepted_calls(
    call_module: Callable[[Function, torch.nn.Module, Arguments, Options], object],
    apply: Callable[..., object],
    vmap: Callable[..., object],
    is_open: Callable[[], bool],
) -> Iterator[None]:
    """Hand calls to a recorder.

    Args:
        call_module: takes the call of each module: ``call_module(run, module, args, kwargs)``.
        apply: takes the call of each ``torch.autograd.Function.apply``: ``apply(kind, *args)``.
        vmap: takes each call of a function that ``torch.vmap`` returns: ``vmap(run, *args)``.
        is_open: whether functions called now are to be seen.
    """
    run_vmap = batching.vmap_impl
    call, call_script = torch.nn.Module.__call__, torch.jit.ScriptFunction.__call__

    def of_module(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
        return call_module(functools.partial(call, module), module, args, kwargs)

    def of_script(function: torch.jit.ScriptFunction, *args: object, **kwargs: object) -> object:
        original = getattr(function, "_torchdynamo_inline", None)  # which torch.compile calls as well
        if original is None or not is_open():
            return call_script(function, *args, **kwargs)
        return original(*args, **kwargs)

    def of_vmap(*args: object, **kwargs: object) -> object:
        return vmap(run_vmap, *args, **kwargs) if is_open() else run_vmap(*args, **kwargs)

    def of_check(check: TensorCheck, error: object, condition: torch.Tensor, message: Message | None = None) -> None:
        if not is_open() or not isinstance(condition, FakeTensor):
            check(error, condition, message)
            return
        text = ""
        with contextlib.suppress(Exception):  # of values
            text = "" if message is None else str(message())
        assert_async(condition.all(), text)

    torch.nn.Module.__call__, torch.jit.ScriptFunction.__call__ = of_module, of_script
    batching.vmap_impl = of_vmap
    try:
        with _calling_for_apply(apply, is_open), tensor_checks_by(of_check):
            yield
    finally:
        torch.nn.Module.__call__, torch.jit.ScriptFunction.__call__ = call, call_script
        batching.vmap_impl = run_vmap
