"""Layers that check the values of their tensors: an error on any rank is raised on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from distdl import _core
from distdl.nn.base.layer import Layer
from distdl.partitions.grid import Grid


class CheckedLayer(Layer):
    """A layer whose workers check values before each call.

    The check needs no communication. If a worker's values seem wrong, all workers set up again, and exchange their
    errors. Without the structure check a worker raises alone. Within the call of another layer they vote, too.

    Attributes:
        error: the class of the exception.
        is_checked_around: whether an outer layer checks the values, so that this layer has no vote.
    """

    error: ClassVar[type[Exception]] = RuntimeError
    is_checked_around = False

    def local_error(self, inputs: Sequence[object]) -> str:
        """The error in the values of this worker's tensors, or "".

        Runs after :meth:`set_up`, or uses the last set-up.
        """
        raise NotImplementedError

    def holders(self) -> tuple[str, Grid]:
        """The name and the grid of the partition whose workers hold the checked tensors."""
        return "P_x", self.grid

    def compared_tensors(self, inputs: Sequence[object]) -> Sequence[object]:
        """Make all ranks set up again if this worker's values seem wrong; the set-up then raises on all of them.

        Without the structure check this worker raises alone.
        """
        agreement = self.agreement
        if agreement is None or self.is_checked_around:
            return inputs
        agreement.vote_within()  # the vote of an outer layer does not include values
        if self._distdl_is_setup and (why := self._local_error(inputs)):
            if not _core.structure_check():
                raise self._error_of(self.holders()[1].rank, why)
            agreement.forget()
        return inputs

    def _local_error(self, inputs: Sequence[object]) -> str:
        """The result of :meth:`local_error`, or its exception as text, which would be raised on this rank only."""
        if not self.holders()[1].active:
            return ""
        try:
            return self.local_error(inputs)
        except Exception as error:
            return f"has values that cannot be checked: {error}"

    def _error_of(self, worker: int, problem: str) -> Exception:
        return self.error(f"{type(self).__name__}: worker {worker} of {self.holders()[0]} {problem}")

    def set_up_for(self, args: tuple[object, ...]) -> None:
        super().set_up_for(args)
        group = self.all_ranks
        if not group.active:
            return
        for rank, problem in zip(group.ranks, group.gather(self._local_error(args).encode()), strict=True):
            if problem:
                raise self._error_of(self.holders()[1].ranks.index(rank), problem.decode())
