"""The memory of results and messages: the pool behind them, and the way to and from devices.

Fresh memory costs several times the copy into it, so what a result or a message used is kept in a pool for the next
ones. Tensors on a device go straight to MPI if it says that it can use their memory, and otherwise through pinned
memory of the host. All of this belongs to this rank, and so do these functions: no other rank has to call them.
"""

from __future__ import annotations

from distdl import _core

STAGING = {
    "where needed": _core.Staging.where_needed,
    "never": _core.Staging.never,
    "always": _core.Staging.always,
}


def set_pool_limit(bytes: int) -> None:
    """Let the pool keep at most so many bytes of unused memory; 512 MiB by default, 0 turns it off.

    Memory that results use does not count. What exceeds the limit goes back to the system, that which was not used for
    the longest time first.

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
    """Say when what travels is copied to and from memory of the host, for MPI libraries that know no other.

    Only what is sent is copied, not the whole tensor. The environment variable ``DISTDL_STAGING`` sets it from the
    beginning.

    Args:
        when: "where needed", the default: for devices that MPI does not list in the info key ``mpi_memory_alloc_kinds``
            (MPI 4.1); "never", if it can use their memory without saying so; "always", also for tensors on the CPU.

    Raises:
        ValueError: for anything else.
    """
    if when not in STAGING:
        raise ValueError(f"set_staging: when={when!r}; it must be one of {', '.join(map(repr, STAGING))}")
    _core.set_staging(STAGING[when])


def staging() -> str:
    """When what travels is staged: see :func:`set_staging`."""
    return next(name for name, value in STAGING.items() if value == _core.staging())
