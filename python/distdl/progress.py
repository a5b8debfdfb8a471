"""The thread on which started operators run while Python and torch compute.

It belongs to this rank, and so do these functions: no other rank has to call them.
"""

from __future__ import annotations

from distdl import _core


def set_progress_thread(on: bool) -> None:
    """Let started operators run on a thread of their own, which is the default, or where they are started.

    Without it, or where MPI was initialized with less than ``MPI_THREAD_MULTIPLE``, ``start`` does everything and
    ``wait`` returns the result. The environment variable ``DISTDL_PROGRESS_THREAD=0`` turns it off from the beginning.
    """
    _core.set_progress_thread(on)


def progress_thread() -> bool:
    """Whether started operators run on a thread of their own."""
    return _core.progress_thread()
