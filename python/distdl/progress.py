"""The thread on which started operators run while Python and torch compute.

It belongs to this rank, and so do these functions: no other rank has to call them.
"""

from __future__ import annotations

import atexit
import os
import sys

from mpi4py import MPI

from distdl._load import _core


def set_progress_thread(on: bool) -> None:
    """Let started operators run on a thread of their own, which is the default, or where they are started.

    Without it, or where MPI was initialized with less than ``MPI_THREAD_MULTIPLE``, ``start`` does everything and
    ``wait`` returns the result. The environment variable ``DISTDL_PROGRESS_THREAD=0`` turns it off from the beginning.
    """
    _core.set_progress_thread(on)


def progress_thread() -> bool:
    """Whether started operators run on a thread of their own."""
    return _core.progress_thread()


def _end_after_failure() -> None:
    """End the job if an MPI call has failed here: the other ranks may wait for ever for what did not happen."""
    if failure := _core.failure():
        sys.stdout.flush()
        rank = MPI.COMM_WORLD.rank
        print(f"distdl: rank {rank} ends the job, in which others may wait for it: {failure}", file=sys.stderr)
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)


def _finish() -> None:
    """At the end of the program: let nothing be under way, and say what nobody has heard yet."""
    _end_after_failure()
    # An exception that nobody caught: mpi4py will end the job at once, and others may never do what is under way here.
    ends_the_job = "mpi4py.run" in sys.modules and hasattr(sys, "last_value")
    if not ends_the_job:
        _core.finish_all()
    while complaint := _core.take_complaint():
        print(f"distdl: the end of the program {complaint}", file=sys.stderr)


if os.environ.get("DISTDL_PROGRESS_THREAD", "1") == "0":
    set_progress_thread(False)
atexit.register(_finish)
os.register_at_fork(after_in_child=lambda: atexit.unregister(_finish))  # the thread stays with the parent


def _before_mpi_ends(*_: object) -> None:
    _end_after_failure()
    _core.finish_all()


# Where the program finalizes MPI itself: what is attached to COMM_SELF is deleted first, while MPI still works.
MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_before_mpi_ends), None)
