"""The memory of results and messages, which is kept in a pool, and the way to and from devices.

A tensor on a device goes to MPI through pinned host memory. The functions concern this rank only.
"""

from __future__ import annotations

from distdl import _core

STAGING = {
    "where needed": _core.Staging.where_needed,
    "always": _core.Staging.always,
}


def set_pool_limit(bytes: int) -> None:
    """Limit the unused memory that the pool keeps, in bytes. The least recently used memory is freed first.

    Args:
        bytes: the limit; 512 MiB by default. 0 turns the pool off.

    Raises:
        ValueError: if ``bytes`` is negative.
    """
    if bytes < 0:
        raise ValueError(f"set_pool_limit: bytes={bytes}; it must be at least 0")
    _core.set_pool_limit(bytes)


def pool_limit() -> int:
    """The limit of the pool's unused memory, in bytes."""
    return _core.pool_limit()


def pool_size() -> int:
    """The pool's unused memory, in bytes."""
    return _core.pool_size()


def empty_pool() -> None:
    """Give all unused memory back to the system."""
    _core.empty_pool()


def set_staging(when: str) -> None:
    """Choose when messages are staged, that is copied through host memory.

    The environment variable ``DISTDL_STAGING`` sets the initial value.

    Args:
        when: "where needed", the default, for tensors on devices, or "always", also for tensors on the CPU.

    Raises:
        ValueError: for another value.
    """
    if when not in STAGING:
        raise ValueError(f"set_staging: when={when!r}; it must be one of {', '.join(map(repr, STAGING))}")
    _core.set_staging(STAGING[when])


def staging() -> str:
    """When messages are staged: see :func:`distdl.memory.set_staging`."""
    return next(name for name, value in STAGING.items() if value == _core.staging())
