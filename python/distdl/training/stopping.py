"""Stopping on signals: a signal to any rank ends the loops of all ranks at the same step."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from distdl.partitions.comparison import View, differing_views
from distdl.partitions.grid import Grid, refuse_ended
from distdl.partitions.partition import Partition
from distdl.partitions.signatures import raise_together
from distdl.process import interrupts

_NAME = "stop_requested"
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_ONE_CTRL_C = 1.0  # seconds: a terminal and mpiexec may both tell a rank of the same Ctrl-C


class _Request:
    """The request to stop, in this process; ``asked_at`` is the time of the first SIGINT."""

    def __init__(self) -> None:
        self.is_made = False
        self.asked_at: float | None = None
        self._listens = False

    def listen(self) -> None:
        """Handle the signals whose handlers the program has not set; later calls do nothing."""
        if self._listens:
            return
        for number in _STOP_SIGNALS:
            if interrupts.is_default(number):
                interrupts.handle_by(self._receive, number)
        os.register_at_fork(after_in_child=self._ignore_in_child)
        self._listens = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self.asked_at is not None and now - self.asked_at > _ONE_CTRL_C:
            interrupts.interrupt(number, frame)
        if number == signal.SIGINT and self.asked_at is None:
            self.asked_at = now
        self.is_made = True

    def _ignore_in_child(self) -> None:
        """In a forked child, such as a worker of a DataLoader: only SIGTERM, from its parent, ends it."""
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) == self._receive:
                signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)


_request = _Request()


def request_stop() -> None:
    """Ask all ranks to stop: their next :func:`stop_requested` returns True.

    It takes no communication: a single rank may call it, also in a signal handler.

    Example:
        >>> signal.signal(signal.SIGUSR2, lambda number, frame: distdl.request_stop())
    """
    _request.is_made = True


def _raise_on_ranks_of(name: str, error: Exception, arguments: tuple[object, ...]) -> None:
    P = next((argument for argument in arguments if isinstance(argument, Partition)), None)
    grid = Grid.all_of_job() if P is None else P.grid
    if grid.active:
        differing_views(_NAME, grid.host_exchange(), View(), error)


@raise_together(_raise_on_ranks_of)
def stop_requested(P: Partition | None = None) -> bool:
    """Whether any rank was asked to stop, by a signal or by :func:`request_stop`: the same answer on all ranks.

    The first call installs handlers for SIGINT (Ctrl-C), SIGTERM and SIGUSR1, unless the program has: these signals
    make all later calls return True. A second Ctrl-C, more than a second after the first, raises KeyboardInterrupt on
    all ranks, before their next common call. Processes that a rank forks later, such as workers of a DataLoader, end by
    SIGTERM only.

    Args:
        P: the ranks that stop together, by default all; other ranks get False.

    Raises:
        TypeError: on this rank, if P is not a partition.
        ValueError: on all ranks, if the first call on any of them is outside of the main thread.
        RuntimeError: on all ranks, if some of them make another call instead.

    Collective over P, with a small exchange. Call it before the training too, to have signals wait for the first step.

    Example:
        >>> for step, (x, y) in enumerate(batches):
        ...     train(x, y)
        ...     if distdl.stop_requested():
        ...         distdl.save("last.distdl", model, optimizer)
        ...         break
    """
    if P is not None and not isinstance(P, Partition):
        raise TypeError(f"{_NAME}: P is a {type(P).__name__}; it has to be a distdl.Partition, or None for all ranks")
    refuse_ended(_NAME, None)
    grid = Grid.all_of_job() if P is None else P.grid
    if not grid.active:
        return False
    error: Exception | None = None
    try:
        _request.listen()
    except ValueError as raised:  # signal.signal() works in the main thread only
        error = raised
    view = View(_NAME, options=(("requested", str(_request.is_made)),))
    if differing_views(_NAME, grid.host_exchange(), view, error) is not None:  # some rank was asked
        _request.is_made = True
    return _request.is_made
