"""The autograd engine, its hooks on saved tensors, and its graph in compiled programs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TypeAlias

import torch
import torch.utils.checkpoint
from torch.autograd.function import FunctionMeta, _SingleLevelFunction
from torch.utils.checkpoint import _checkpoint_hook

__all__ = [
    "Context",
    "FunctionMeta",
    "SingleLevelFunction",
    "at_end_of_backward",
    "autograd_again",
    "gradients_seen_by_modes",
    "hide_saved_tensors",
    "inputs_of_checkpoint",
]
__all__ += ["is_checkpoint_hook", "is_in_backward", "number_of_writes", "saved_tensors_hooks", "takes_hooks"]

Context: TypeAlias = torch.autograd.function.FunctionCtx
"""The first argument of an autograd function's methods."""
SingleLevelFunction = _SingleLevelFunction
saved_tensors_hooks: Callable[[], tuple[Callable[..., object], Callable[..., object]] | None] = functools.partial(
    torch._C._autograd._top_saved_tensors_default_hooks, True
)
"""The innermost hooks on tensors that autograd saves, or None."""
takes_hooks: Callable[[], bool] = torch._C._autograd._saved_tensors_hooks_is_enabled
"""Whether hooks on saved tensors may be set here: transforms of ``torch.func`` refuse them."""

_AUTOGRAD_KEYS = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")


def number_of_writes(tensor: torch.Tensor) -> int:
    """The number of writes to a tensor; 0 if it was made in inference mode, where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


def is_in_backward() -> bool:
    """Whether this thread is within a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def gradients_seen_by_modes(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], of_results: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """The result of ``torch.autograd.grad``, which a mode would see as a single function."""
    engine = torch.autograd.Variable._execution_engine
    return engine.run_backward(
        tuple(results), tuple(of_results), False, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def is_checkpoint_hook(name: str) -> bool:
    """Whether hooks on saved tensors, by their qualified name, belong to an activation checkpoint."""
    return name.startswith(_checkpoint_hook.__name__)


def inputs_of_checkpoint(function: type[torch.autograd.Function]) -> object:
    """For a recording, the inputs that an activation checkpoint of torch 2.11 or older keeps by a function of its own.

    The checkpoint only looks whether they have a graph. NotImplemented for other functions. It can go with torch 2.11.
    """
    if function is not getattr(torch.utils.checkpoint, "_NoopSaveInputs", None):
        return NotImplemented
    return SimpleNamespace(grad_fn=True if torch.is_grad_enabled() else None)


def hide_saved_tensors() -> contextlib.AbstractContextManager[object]:
    """A context that hides the tensors that autograd saves from surrounding hooks.

    Non-reentrant activation checkpointing counts the tensors that a call saves, and only the first call has a set-up.
    """
    if saved_tensors_hooks() is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved)


def autograd_again() -> contextlib.AbstractContextManager[None]:
    """Let autograd record: compiled programs exclude it, even with gradients enabled."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in _AUTOGRAD_KEYS:
        excluded = excluded.remove(getattr(torch._C.DispatchKey, name))
    guard: contextlib.AbstractContextManager[None] = torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set(), excluded
    )
    return guard
