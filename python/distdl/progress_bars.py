"""Progress bars of functions that may take long: saving, loading, the plans of a model, and its first call.

The functions concern this rank only.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TextIO, TypeVar

_Item = TypeVar("_Item")
_DELAY = 2.0  # seconds, after which a bar appears
_show: list[bool | Callable[[str, int, int | None], object]] = [True]


def set_progress_bars(show: bool | Callable[[str, int, int | None], object]) -> None:
    """Choose whether rank 0 shows the progress of what takes more than two seconds.

    The environment variable ``DISTDL_PROGRESS_BARS=0`` turns bars off initially.

    Args:
        show: true, the default, for a bar of tqdm (if it is installed) in the terminal from which the job was started;
            it writes into no file. False for none. A function is called after each step instead, on rank 0, with the
            name of the operation, the number of steps done, and of all steps (None if it is not known).

    Raises:
        TypeError: if ``show`` is anything else.

    Example:
        >>> distdl.set_progress_bars(lambda name, done, total: logging.info("%s: %d of %s", name, done, total))
    """
    if not isinstance(show, bool) and not callable(show):
        raise TypeError(f"set_progress_bars: show={show!r}; it has to be a bool or a function")
    _show[0] = show


class ProgressBar:
    """The progress of an operation.

    Args:
        is_shown: false on ranks that show nothing.
    """

    def __init__(self, name: str, total: int | None, is_shown: bool) -> None:
        self._name, self._total, self._done = name, total, 0
        self._call = _show[0] if is_shown and callable(_show[0]) else None
        self._terminal = _terminal() if is_shown and _show[0] is True else None
        self._bar = None if self._terminal is None else _bar(name, total, self._terminal)

    def advance(self) -> None:
        """Note that a step is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()
        elif self._call is not None:
            self._call(self._name, self._done, self._total)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
        if self._terminal is not None and self._terminal is not sys.stderr:
            self._terminal.close()


def with_progress(name: str, items: Iterable[_Item], is_shown: bool) -> Iterator[_Item]:
    """The items, with a bar that advances after each of them."""
    bar = ProgressBar(name, len(items) if isinstance(items, Sized) else None, is_shown)
    try:
        for item in items:
            yield item
            bar.advance()
    finally:
        bar.close()


def _terminal() -> TextIO | None:
    """The terminal of the user, also where mpiexec reads what ranks print; None for a job without one."""
    if sys.stderr is not None and sys.stderr.isatty():
        return sys.stderr
    try:
        return open("/dev/tty", "w")  # noqa: PTH123
    except OSError:
        return None


def _bar(name: str, total: int | None, terminal: TextIO) -> Any:
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        return None
    return tqdm(desc=name, total=total, delay=_DELAY, file=terminal, leave=False)
