"""Copies of a module: ranks that call a copy where others call the layer itself, or another copy, all raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from distdl.collective.grid import Grid, refuse_ended

if TYPE_CHECKING:
    from distdl.nn.module import Module


class CopyNumber:
    """Which of a layer and its copies this is.

    A rank may make copies that others do not make, so a copy has no number before its first call. All ranks make that
    call together, and count alike.

    Attributes:
        text: for the ranks to compare in each call: "" for the layer itself, None for a copy that was not called.
    """

    def __init__(self) -> None:
        self.text: str | None = ""
        self._called = [0]  # how many copies were; the layer and its copies share the list

    def of_copy(self) -> CopyNumber:
        """The number for a copy of the layer."""
        copied = CopyNumber()
        copied.text, copied._called = None, self._called
        return copied

    def __deepcopy__(self, memo: dict[int, object]) -> CopyNumber:
        return self  # the copied layer asks for another one

    def first_call(self, layer: Module, everyone: Grid, agree: Callable[[str], bool]) -> bool:
        """Begin the first call of a copy. Collective over the layer's ranks, which raise if others call anything else.

        Args:
            layer: the copy.
            everyone: the layer's ranks.
            agree: begins the call, with this text for the ranks to compare.
        """
        what = f"the first call of a copy of {type(layer).__name__}"
        refuse_ended(what, everyone.root)
        copied_alike, _ = everyone.host_exchange().compare(what, str(layer.first_values is None))
        text = f"copy {self._called[0] + 1}"
        changed = agree(text)
        self._called[0] += 1
        self.text = text
        if not copied_alike:  # before its first call, in which habits are noticed, and after it
            layer.first_values = None
        return changed
