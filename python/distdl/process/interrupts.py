"""Ctrl-C: all ranks raise KeyboardInterrupt at the same call, so that they can save or end together."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from mpi4py import MPI

from distdl import _core

Handler = Callable[[int, FrameType | None], None]

_SECONDS = 5.0  # to the next call


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: all ranks raise KeyboardInterrupt in their next call.

    A rank that comes to no call raises it alone, after some seconds, or at another Ctrl-C more than a second later.
    """
    told = _core.request_interrupt()
    if told == _core.Interrupt.again or MPI.COMM_WORLD.Get_size() == 1:
        signal.default_int_handler(number, frame)
    if told == _core.Interrupt.first and MPI.COMM_WORLD.Get_rank() == 0:
        os.write(2, b"distdl: all ranks are interrupted in their next call; press Ctrl-C again to interrupt at once\n")
    if told == _core.Interrupt.first:
        with suppress(RuntimeError):  # the interpreter ends, or there is no thread left
            _thread.start_new_thread(_insist, ())  # threading has locks, which the main thread may hold now


def _insist() -> None:
    """Interrupt the main thread once more if it neither came to a call nor waits for ranks that do."""
    time.sleep(_SECONDS)
    while _core.interrupt_requested() and _core.main_thread_waits():
        time.sleep(1)
    if _core.interrupt_requested():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def is_default(number: int) -> bool:
    """Whether the program has installed no handler of its own for this signal."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, interrupt)


def handle_by(handler: Handler, number: int = signal.SIGINT) -> None:
    """Have this function handle a signal. Called on the main thread.

    A second Ctrl-C in one wait for other ranks, where no handler can run, ends the process.
    """
    signal.signal(number, handler)
    if number == signal.SIGINT:
        _core.watch_interrupts()


def install() -> None:
    """Handle Ctrl-C from now on, in a job of several ranks whose program does not."""
    several = MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1
    if not several or signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        return
    try:
        handle_by(interrupt)
    except ValueError:  # imported on another thread than the main one
        return
    os.register_at_fork(after_in_child=_leave_to_parent)


def _leave_to_parent() -> None:
    """In a forked child, such as a worker of a DataLoader: a terminal tells it as well, but its rank goes on."""
    if signal.getsignal(signal.SIGINT) == interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
