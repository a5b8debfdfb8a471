"""Layers that look at the values of their tensors: what is wrong with them on one rank is raised on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from distdl import _core
from distdl.collective.grid import Grid
from distdl.nn.layer import Layer


class CheckedLayer(Layer):
    """A layer whose workers check values before each call.

    Values are checked without communication. Where they seem wrong on a worker, all of them set up again, in which they
    tell each other. With the structure check off each raises for itself alone. Within the call of another layer they
    vote, too.

    Attributes:
        error: what is raised.
        is_checked_around: whether a layer around this one checks the values for it, so that it has no vote of its own.
    """

    error: ClassVar[type[Exception]] = RuntimeError
    is_checked_around = False

    def problem_here(self, inputs: Sequence[object]) -> str:
        """The error in the values of this worker's tensors, or "". It runs after :meth:`set_up`, or knows of the last
        one."""
        raise NotImplementedError

    def holders(self) -> tuple[str, Grid]:
        """The name of the partition whose workers have what is checked, and its grid."""
        return "P_x", self.grid

    def looked_at(self, inputs: Sequence[object]) -> Sequence[object]:
        """Make all ranks set up again if this worker's values seem wrong; the set-up then raises on all of them.

        Without the structure check the others would not hear of it: this worker raises alone.
        """
        agreement = self._distdl_agreement
        if agreement is None or self.is_checked_around:
            return inputs
        agreement.vote_within()  # what a layer around this one agreed on says nothing of values
        if self._distdl_is_setup and (why := self._found_here(inputs)):
            if not _core.structure_check():
                raise self._error_of(self.holders()[1].rank, why)
            agreement.forget()
        return inputs

    def _found_here(self, inputs: Sequence[object]) -> str:
        """:meth:`problem_here`, or why there is no answer. What is raised here would be raised on this rank alone."""
        if not self.holders()[1].active:
            return ""
        try:
            return self.problem_here(inputs)
        except Exception as error:
            return f"has values that cannot be looked at: {error}"

    def _error_of(self, worker: int, problem: str) -> Exception:
        return self.error(f"{type(self).__name__}: worker {worker} of {self.holders()[0]} {problem}")

    def _distdl_module_setup(self, input: tuple[object, ...]) -> None:
        super()._distdl_module_setup(input)
        everyone = self.everyone
        if not everyone.active:
            return
        for rank, found in zip(everyone.ranks, everyone.gather(self._found_here(input).encode()), strict=True):
            if found:
                raise self._error_of(self.holders()[1].ranks.index(rank), found.decode())
