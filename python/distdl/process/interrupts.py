"""Ctrl-C: all ranks raise KeyboardInterrupt in the same call, so that they can save or end together."""

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

_SECONDS_TO_NEXT_CALL = 5.0


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: all ranks raise KeyboardInterrupt in their next call.

    A rank without a further call raises it alone, after some seconds, or at a Ctrl-C more than a second later.
    """
    answer = _core.request_interrupt()
    if answer == _core.Interrupt.again or MPI.COMM_WORLD.Get_size() == 1:
        signal.default_int_handler(number, frame)
    if answer == _core.Interrupt.first and MPI.COMM_WORLD.Get_rank() == 0:
        os.write(2, b"distdl: all ranks are interrupted in their next call; press Ctrl-C again to interrupt at once\n")
    if answer == _core.Interrupt.first:
        with suppress(RuntimeError):  # the interpreter ends, or there is no thread left
            _thread.start_new_thread(_insist, ())  # threading has locks, which the main thread may hold now


def _insist() -> None:
    """Interrupt the main thread again if it neither reached a call nor waits for other ranks."""
    time.sleep(_SECONDS_TO_NEXT_CALL)
    while _core.interrupt_requested() and _core.main_thread_waits():
        time.sleep(1)
    if _core.interrupt_requested():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def is_default(number: int) -> bool:
    """Whether the program has installed no handler for this signal."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, interrupt)


def handle_by(handler: Handler, number: int = signal.SIGINT) -> None:
    """Set the handler of a signal, on the main thread.

    A second Ctrl-C in one wait for other ranks, where no handler can run, ends the process.
    """
    signal.signal(number, handler)
    if number == signal.SIGINT:
        _core.watch_interrupts()


def install_handlers() -> None:
    """Handle Ctrl-C in a job of several ranks, unless the program does."""
    has_several_ranks = MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1
    if not has_several_ranks or signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        return
    try:
        handle_by(interrupt)
    except ValueError:  # imported outside of the main thread
        return
    os.register_at_fork(after_in_child=_ignore_in_child)


def _ignore_in_child() -> None:
    """In a forked child, such as a worker of a DataLoader: ignore Ctrl-C in the terminal, since its rank goes on."""
    if signal.getsignal(signal.SIGINT) == interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
