"""How ranks agree to stop: a signal for any of them ends the loop of all of them at the same step."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from mpi4py import MPI

from distdl.collective.comparison import View, exchange_views, raise_together
from distdl.collective.grid import Grid, refuse_ended
from distdl.partition import Partition
from distdl.process import interrupts

_WHAT = "stop_requested"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_ONE_CTRL_C = 1.0  # seconds: a terminal and mpiexec may both tell a rank of the same Ctrl-C


class _Request:
    """The state of this process's wish to stop.

    Attributes:
        is_made: whether this rank was asked to stop, or has learned that another one was.
        asked_at: when the first SIGINT came; None before.
    """

    def __init__(self) -> None:
        self.is_made = False
        self.asked_at: float | None = None
        self._listens = False

    def listen(self) -> None:
        """Handle the signals that end the program otherwise; handlers of the program's own stay. Once."""
        if self._listens:
            return
        for number in _SIGNALS:
            if interrupts.is_default(number):
                interrupts.handle_by(self._receive, number)
        os.register_at_fork(after_in_child=self._leave_to_parent)
        self._listens = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT and self.asked_at is not None and now - self.asked_at > _ONE_CTRL_C:
            interrupts.interrupt(number, frame)
        if number == signal.SIGINT and self.asked_at is None:
            self.asked_at = now
        self.is_made = True

    def _leave_to_parent(self) -> None:
        """In a forked child, such as a worker of a DataLoader: it works on until its parent ends it, by SIGTERM."""
        for number in _SIGNALS:
            if signal.getsignal(number) == self._receive:
                signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)


_request = _Request()


def request_stop() -> None:
    """Ask all ranks to stop: their next :func:`stop_requested` returns True. Concerns this rank only.

    It takes no communication, so that one rank alone may call it, in a signal handler too.

    Example:
        >>> signal.signal(signal.SIGUSR2, lambda number, frame: distdl.request_stop())
    """
    _request.is_made = True


def _tell(name: str, error: Exception, arguments: tuple[object, ...]) -> None:
    P = next((one for one in arguments if isinstance(one, Partition)), None)
    grid = Grid.of(MPI.COMM_WORLD) if P is None else P.grid
    if grid.active:
        exchange_views(_WHAT, grid.line(grid.ranks), View(), error)


@raise_together(_tell)
def stop_requested(P: Partition | None = None) -> bool:
    """Whether any rank was asked to stop, by a signal or by :func:`request_stop`: the same answer on all ranks.

    The first call installs handlers for SIGINT (Ctrl-C), SIGTERM and SIGUSR1, where the program has not installed its
    own. From then on these signals do not end the program: they only make this function return True, now and in all
    later calls. A second Ctrl-C, more than a second after the first, raises KeyboardInterrupt on all ranks, in front of
    the next call that all of them make. Processes that a rank forks afterwards, such as workers of a DataLoader, ignore
    SIGINT and SIGUSR1, and end by SIGTERM.

    Args:
        P: the ranks that stop together; all ranks of ``MPI.COMM_WORLD`` by default.

    Returns:
        False on ranks that are not in P.

    Raises:
        TypeError: on this rank, if P is not a partition.
        ValueError: on all ranks, if the first call on one of them is made outside of the main thread.
        RuntimeError: on all ranks, if some of them make another call instead.

    Collective over P: all of its ranks have to call it, equally often. It costs the ranks one small exchange, as a
    layer's call does. Call it once before the training to have signals wait for the first step.

    Example:
        >>> for step, (x, y) in enumerate(batches):
        ...     train(x, y)
        ...     if distdl.stop_requested():
        ...         distdl.save("last.distdl", model, optimizer)
        ...         break
    """
    if P is not None and not isinstance(P, Partition):
        raise TypeError(f"{_WHAT}: P is a {type(P).__name__}; it has to be a distdl.Partition, or None for all ranks")
    refuse_ended(_WHAT, None)
    grid = Grid.of(MPI.COMM_WORLD) if P is None else P.grid
    if not grid.active:
        return False
    error: Exception | None = None
    try:
        _request.listen()
    except ValueError as raised:  # signal.signal() works in the main thread only
        error = raised
    mine = View(_WHAT, options=(("requested", str(_request.is_made)),))
    views = exchange_views(_WHAT, grid.line(grid.ranks), mine, error)
    if any(view.options[0][1] == "True" for view in views.values()):
        _request.is_made = True
    return _request.is_made
