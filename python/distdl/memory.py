"""The memory of results and messages: the pool behind them, and the way to and from devices.

Fresh memory costs several times the copy into it, so the memory of old results and messages is kept in a pool for new
ones. A tensor on a device goes to MPI through pinned host memory. The functions concern this rank only: no other rank
has to call them.
"""

from __future__ import annotations

from distdl import _core

STAGING = {
    "where needed": _core.Staging.where_needed,
    "always": _core.Staging.always,
}


def set_pool_limit(bytes: int) -> None:
    """Let the pool keep at most so many bytes of unused memory.

    The memory of results in use does not count. Memory above the limit goes back to the system, least recently used
    memory first.

    Args:
        bytes: the limit; 512 MiB by default. 0 turns the pool off.

    Raises:
        ValueError: if ``bytes`` is negative.
    """
    if bytes < 0:
        raise ValueError(f"set_pool_limit: bytes={bytes}; it must be at least 0")
    _core.set_pool_limit(bytes)


def pool_limit() -> int:
    """How many bytes of unused memory the pool may keep."""
    return _core.pool_limit()


def pool_size() -> int:
    """How many bytes of unused memory the pool keeps."""
    return _core.pool_size()


def empty_pool() -> None:
    """Give all unused memory back to the system."""
    _core.empty_pool()


def set_staging(when: str) -> None:
    """Choose when messages are staged, that is copied through host memory.

    Only the elements that are sent and received are copied, not the whole tensor. The environment variable
    ``DISTDL_STAGING`` sets it from the beginning.

    Args:
        when: "where needed", the default: for tensors on devices, also where the MPI library can use their memory;
            "always": also for tensors on the CPU.

    Raises:
        ValueError: for anything else.
    """
    if when not in STAGING:
        raise ValueError(f"set_staging: when={when!r}; it must be one of {', '.join(map(repr, STAGING))}")
    _core.set_staging(STAGING[when])


def staging() -> str:
    """When messages are staged: see :func:`distdl.memory.set_staging`."""
    return next(name for name, value in STAGING.items() if value == _core.staging())
