"""Copies of a module: ranks raise if some call the module and others a copy."""

from __future__ import annotations

from collections.abc import Callable

from distdl.partitions.grid import Grid, refuse_ended


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

    def first_call(self, name: str, group: Grid, is_checked: bool, agree: Callable[[str], bool]) -> tuple[bool, bool]:
        """Begin the first call of a copy. Collective over the layer's ranks; all raise if any rank calls another copy.

        Args:
            name: of the layer's class.
            is_checked: whether the copy still makes the checks of first calls.
            agree: begins the call with a text that the ranks compare.

        Returns:
            The result of ``agree``, and whether ``is_checked`` is equal on all ranks.
        """
        call = f"the first call of a copy of {name}"
        refuse_ended(call, group.root)
        copied_alike, _ = group.host_exchange().compare(call, str(not is_checked))
        text = f"copy {self._called[0] + 1}"
        changed = agree(text)
        self._called[0] += 1
        self.text = text
        return changed, copied_alike
