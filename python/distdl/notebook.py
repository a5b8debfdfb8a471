"""An extension of IPython, with which the ranks come to the end of each cell together.

``%px %load_ext distdl.notebook`` loads it on the engines of ipyparallel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from distdl import _core
from distdl.texts import safe_text

_LONGEST_MESSAGE = 300


class CellResult(Protocol):
    """The result of a cell, as IPython passes it on."""

    error_before_exec: BaseException | None
    error_in_exec: BaseException | None


class CellEvents(Protocol):
    """The events for which IPython calls functions."""

    def register(self, event: str, function: Callable[[CellResult], None]) -> None: ...

    def unregister(self, event: str, function: Callable[[CellResult], None]) -> None: ...


class CellShell(Protocol):
    """The interpreter of IPython that runs cells."""

    events: CellEvents


def end_cell(result: CellResult) -> None:
    """Wait until all ranks have come to the end of a cell; ranks that wait in a call for one at its end raise."""
    error = result.error_before_exec or result.error_in_exec
    raised = f", which raised {type(error).__name__}: {safe_text(error, str)[:_LONGEST_MESSAGE]}" if error else ""
    _core.end_of_cell(f"the end of a cell{raised}")


def load_ipython_extension(shell: CellShell) -> None:
    """Let the ranks come to the end of this cell, and of all later cells, together."""
    shell.events.register("post_run_cell", end_cell)


def unload_ipython_extension(shell: CellShell) -> None:
    """Let each rank end its cells by itself."""
    shell.events.unregister("post_run_cell", end_cell)
