"""The pool of memory behind results and messages.

Fresh memory costs several times the copy into it, so what a result or a message used is kept for the next ones. The
pool belongs to this rank, and so do its functions: no other rank has to call them.
"""

from __future__ import annotations

from distdl._load import _core


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
