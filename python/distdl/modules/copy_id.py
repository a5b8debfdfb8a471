"""Copies of a module: ranks raise if some call the module and others a copy."""

from __future__ import annotations

from distdl.partitions.grid import Grid, refuse_ended


class CopyId:
    """Identifies a copy of a layer.

    Ranks may make different copies, so a copy has no number before its first call. All ranks make this call together,
    and count alike.

    Attributes:
        is_new: whether this is a copy before its first call.
    """

    def __init__(self) -> None:
        self.is_new = False
        self._called = [0]  # the number of copies called; the layer and its copies share the list

    def of_copy(self) -> CopyId:
        copied = CopyId()
        copied.is_new, copied._called = True, self._called
        return copied

    def __deepcopy__(self, memo: dict[int, object]) -> CopyId:
        return self  # __setstate__ of the copied layer calls of_copy()

    def begin_first_call(self, name: str, group: Grid, is_checked: bool) -> tuple[str, bool]:
        """Number the copy, before the vote on its first call. Collective; raises if any rank makes another call.

        Args:
            name: of the layer's class.
            is_checked: whether the copy still makes the checks of first calls.

        Returns:
            A text that tells the copy from others, and whether ``is_checked`` is equal on all ranks.
        """
        call = f"the first call of a copy of {name}"
        refuse_ended(call, group.root)
        copied_alike, _ = group.host_exchange().compare(call, str(not is_checked))
        self._called[0] += 1
        self.is_new = False
        return f"copy {self._called[0]}", copied_alike
