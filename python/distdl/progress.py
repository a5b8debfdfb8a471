"""The thread on which started operators run while Python and torch compute.

The functions concern this rank only.
"""

from __future__ import annotations

from distdl import _core


def set_progress_thread(on: bool) -> None:
    """Choose whether started operators run on a separate thread.

    Without the thread, or if MPI was initialized with less than ``MPI_THREAD_MULTIPLE``, ``start`` does all the work.
    The environment variable ``DISTDL_PROGRESS_THREAD=0`` turns the thread off initially.

    Args:
        on: true, the default, for the thread; false to run operators within ``start``.
    """
    _core.set_progress_thread(on)


def progress_thread() -> bool:
    """Whether started operators run on a separate thread."""
    return _core.progress_thread()
