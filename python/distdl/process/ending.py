"""The end of a rank's program: an uncaught exception ends the job; otherwise started operators are finished."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from mpi4py import MPI

from distdl import _core

_previous_hook = sys.excepthook
_pid_at_import = os.getpid()
_SECONDS_TO_READ = 0.3
_SECONDS_FOR_THE_FIRST = 3.0


def _end_the_job(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an uncaught exception, and end the job, since other ranks would wait forever.

    Of ranks that all raise the same, the one that has raised it first shows it. The others give it time to end the job.
    """
    try:
        if getattr(error, "is_shown_by_another", False) and _others_may_wait():
            time.sleep(_SECONDS_FOR_THE_FIRST)
        _previous_hook(kind, error, trace)
    finally:
        if _others_may_wait():
            world = MPI.COMM_WORLD
            with suppress(Exception):  # stderr may be closed
                print(
                    f"distdl: rank {world.Get_rank()} of {world.Get_size()} ends the job: {kind.__name__} was not "
                    "caught",
                    file=sys.stderr,
                )
                _flush()
            world.Abort(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)


def _others_may_wait() -> bool:
    if os.getpid() != _pid_at_import or sys.flags.interactive or hasattr(sys, "ps1"):
        return False
    return MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1


def _flush() -> None:
    """Give mpiexec time to read our output: it drops unread output when the job is aborted."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(_SECONDS_TO_READ)


def _end_after_failure() -> None:
    """End the job if an MPI call has failed here, since other ranks may wait for its messages."""
    if failure := _core.failure():
        rank = MPI.COMM_WORLD.Get_rank()
        print(f"distdl: rank {rank} ends the job, in which others may wait for it: {failure}", file=sys.stderr)
        _flush()
        MPI.COMM_WORLD.Abort(1)


def _finish_before(finalize: Callable[[], None]) -> Callable[[], None]:
    """``MPI.Finalize`` that finishes all started operators before.

    From its first moment on, MPICH takes the program for one of a single thread: a lock that the progress thread holds
    then is never released, and MPICH ends the job as soon as it destroys this lock.
    """

    @functools.wraps(finalize)
    def finish_and_finalize() -> None:
        if os.getpid() == _pid_at_import and not MPI.Is_finalized():
            _end_after_failure()
            _core.finish_all()
        finalize()

    return finish_and_finalize


def _finish() -> None:
    """At the end of the program: finish all started operators, and print errors that were not raised."""
    _end_after_failure()
    # After an uncaught exception mpi4py ends the job at once, and started operators may never finish.
    ends_the_job = "mpi4py.run" in sys.modules and hasattr(sys, "last_value")
    if not ends_the_job:
        _core.finish_all()
    while error := _core.take_deferred_error():
        print(f"distdl: the end of the program {error}", file=sys.stderr)
    _core.set_locator(None)


def install_at_end() -> None:
    """Install the handlers for the end of the program."""
    sys.excepthook = _end_the_job
    atexit.register(_finish)
    os.register_at_fork(after_in_child=lambda: atexit.unregister(_finish))  # the threads stay with the parent
    if not MPI.Is_initialized():  # as in the build of the documentation
        return
    MPI.Finalize = _finish_before(MPI.Finalize)
    _core.attend_finalize()
    # MPI deletes the last attribute first: if the program finalizes MPI itself, this releases Python's lock in time.
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_before_mpi_ends), None)


def _before_mpi_ends(*_: object) -> None:
    _end_after_failure()
    _core.end_of_program()
