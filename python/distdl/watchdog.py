"""A thread that reports a rank that waits for too long: the operation, the line of the program, and the other ranks.

The functions concern this rank only: no other rank has to call them.
"""

from __future__ import annotations

import linecache
import math
import sys
import textwrap
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

from distdl import _core

_LIBRARIES = ("distdl", "torch", "contextlib", "concurrent", "threading")
_LONGEST_LINE = 60


def set_watchdog(seconds: float, end: bool = False) -> None:
    """Have the watchdog report when this rank has waited for so long in one operation, and perhaps end the job.

    It writes to stderr, and again when the wait is twice as long, four times, and so on. A report need not be an error:
    another rank may evaluate or save a model for that long.

    Args:
        seconds: the length of the wait, in seconds; 300 by default, 60 with ``DISTDL_DEBUG=1``. 0 turns the watchdog
            off.
        end: whether the watchdog ends the job after its first report, with ``MPI_Abort``.

    Raises:
        ValueError: if ``seconds`` is negative or not finite.

    The environment variables ``DISTDL_WATCHDOG=seconds`` and ``DISTDL_WATCHDOG_END=1`` set them from the beginning.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"set_watchdog: seconds={seconds}; it has to be a finite number of at least 0")
    _core.set_watchdog(float(seconds), bool(end))


def waiting(what: str) -> AbstractContextManager[None]:
    """Let the watchdog see a block of code in which this rank waits for others without DistDL.

    Args:
        what: the name of the block in reports.

    Example:
        >>> with distdl.watchdog.waiting("the barrier before the evaluation"):
        ...     MPI.COMM_WORLD.Barrier()
    """
    return _core.Waiting(what)


def _line_of(thread: int) -> str:
    """The line of the user's program that a thread is on; the main thread's, if it is a thread of a library."""
    frames = sys._current_frames()
    main = frames.get(threading.main_thread().ident or 0)
    innermost = frames.get(thread, main)
    frame = _users(innermost) or _users(main) or innermost
    if frame is None:
        return ""
    code = frame.f_code
    function = "" if code.co_name == "<module>" else f" in {code.co_name}"
    source = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
    if source:
        source = f": {textwrap.shorten(source, _LONGEST_LINE, placeholder=' ...')}"
    path = Path(code.co_filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame.f_lineno}{function}{source}"


def _users(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not of a library."""
    while frame is not None and _is_of_a_library(frame):
        frame = frame.f_back
    return frame


def _is_of_a_library(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return module in _LIBRARIES or not module  # programs that torch generates are in no module


_core.set_locator(_line_of)
