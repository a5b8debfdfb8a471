"""The thread on which started operators run while Python and torch compute.

The functions concern this rank only: no other rank has to call them.
"""

from __future__ import annotations

from distdl import _core


def set_progress_thread(on: bool) -> None:
    """Choose whether started operators run on a thread of their own.

    Without the thread, or where MPI was initialized with less than ``MPI_THREAD_MULTIPLE``, ``start`` does everything
    and ``wait`` returns the result. The environment variable ``DISTDL_PROGRESS_THREAD=0`` turns the thread off from the
    beginning.

    Args:
        on: true for the thread, which is the default; false to run operators where they are started.
    """
    _core.set_progress_thread(on)


def progress_thread() -> bool:
    """Whether started operators run on a thread of their own."""
    return _core.progress_thread()
