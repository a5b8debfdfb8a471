"""Copies of a module: ranks raise if some call the module and others a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from distdl.partitions.grid import Grid, refuse_ended

if TYPE_CHECKING:
    from distdl.modules.module import Module


class CopyId:
    """Identifies a copy of a layer.

    Ranks may make different copies, so a copy has no number before its first call. All ranks make this call together,
    and count alike.

    Attributes:
        text: compared between ranks in each call: "" for the original, None for a copy before its first call.
    """

    def __init__(self) -> None:
        self.text: str | None = ""
        self._called = [0]  # the number of copies called; the layer and its copies share the list

    def of_copy(self) -> CopyId:
        copied = CopyId()
        copied.text, copied._called = None, self._called
        return copied

    def __deepcopy__(self, memo: dict[int, object]) -> CopyId:
        return self  # __setstate__ of the copied layer calls of_copy()

    def first_call(self, layer: Module, group: Grid, agree: Callable[[str], bool]) -> bool:
        """Begin the first call of a copy. Collective over the layer's ranks; all raise if any rank calls another copy.

        Args:
            agree: begins the call with a text that the ranks compare.
        """
        name = f"the first call of a copy of {type(layer).__name__}"
        refuse_ended(name, group.root)
        copied_alike, _ = group.host_exchange().compare(name, str(layer.first_values is None))
        text = f"copy {self._called[0] + 1}"
        changed = agree(text)
        self._called[0] += 1
        self.text = text
        if not copied_alike:  # copied before its first call, which checks habits, and after it
            layer.first_values = None
        return changed
