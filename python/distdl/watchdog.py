"""A thread that reports when a rank waits too long: the operation, the line of the program, and the other ranks.

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

_LIBRARY_PACKAGES = (
    "distdl", "torch", "torchmetrics", "lightning", "pytorch_lightning", "lightning_utilities", "contextlib",
    "concurrent", "threading",
)  # fmt: skip
_LONGEST_LINE = 60


def set_watchdog(seconds: float, end: bool = False) -> None:
    """Have the watchdog report when this rank has waited for some time in an operation, and perhaps end the job.

    It writes to stderr after that time, twice that time, four times, and so on. A report need not be an error: another
    rank may evaluate or save a model.

    Args:
        seconds: the time; 300 by default, 60 with ``DISTDL_DEBUG=1``. 0 turns the watchdog off.
        end: whether the first report ends the job, with ``MPI_Abort``.

    Raises:
        ValueError: if ``seconds`` is negative or not finite.

    The environment variables ``DISTDL_WATCHDOG=seconds`` and ``DISTDL_WATCHDOG_END=1`` set the initial values.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"set_watchdog: seconds={seconds}; it has to be a finite number of at least 0")
    _core.set_watchdog(float(seconds), bool(end))


def waiting(what: str) -> AbstractContextManager[None]:
    """Have the watchdog observe a block of code in which this rank waits for others without DistDL.

    Args:
        what: the name of the block in reports.

    Example:
        >>> with distdl.watchdog.waiting("the barrier before the evaluation"):
        ...     MPI.COMM_WORLD.Barrier()
    """
    return _core.Waiting(what)


def _line_in_program(thread: int) -> str:
    """The current line of a thread in the user's program; the main thread's line for a library's thread."""
    frames = sys._current_frames()
    main = frames.get(threading.main_thread().ident or 0)
    innermost = frames.get(thread, main)
    frame = _innermost_user_frame(innermost) or _innermost_user_frame(main) or innermost
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


def _innermost_user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and _is_in_library(frame):
        frame = frame.f_back
    return frame


def _is_in_library(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return module in _LIBRARY_PACKAGES or not module  # programs that torch generates are in no module


_core.set_locator(_line_in_program)
