"""Modes of torch that see each operator or function, such as recorders and selective checkpointing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes as without_modes

__all__ = [
    "active_modes",
    "is_compiling",
    "outside_of_compilers",
    "unseen_by_modes",
    "with_functions",
    "without_functions",
    "without_modes",
]

active_modes = torch._C._len_torch_dispatch_stack
"""The number of modes that see operators."""
is_compiling = torch.compiler.is_compiling
with_functions = torch._C._EnableTorchFunction
"""A context in which modes and tensor classes see functions of torch again."""
without_functions = torch._C.DisableTorchFunction
"""A context in which no mode or tensor class sees functions of torch."""

_AS_BEFORE = contextlib.nullcontext()
_PROXY = torch._C._TorchDispatchModeKey.PROXY


def _is_recorded() -> bool:
    """Whether a recorder of ``torch.fx`` sees operators."""
    return torch._C._get_dispatch_mode(_PROXY) is not None


def unseen_by_modes() -> contextlib.AbstractContextManager[object]:
    """A context in which modes see no operators: they must see the same ones in each call, and a first call has more.

    Selective activation checkpointing counts them. Recorders still see all; a vote refuses them.
    """
    return without_modes() if active_modes() and not _is_recorded() else _AS_BEFORE


@contextlib.contextmanager
def outside_of_compilers() -> Iterator[None]:
    """Compute as usual within a compiler: without its modes, and without its mark."""
    is_compiling = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        with without_modes():
            yield
    finally:
        torch.compiler._is_compiling_flag = is_compiling
