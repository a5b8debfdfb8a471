"""Layers that look at the values of their tensors: what is wrong with them on one rank is raised on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from distdl import _core
from distdl.nn.layer import Layer


class CheckedLayer(Layer):
    """A layer whose workers check values before each call.

    Values are checked without communication. Where they seem wrong on a worker, all of them set up again, in which they
    tell each other. With the structure check off each raises for itself alone. Within the call of another layer they
    vote, too.

    Attributes:
        error: what is raised.
    """

    error: ClassVar[type[Exception]] = RuntimeError

    def problem_here(self, inputs: Sequence[object]) -> str:
        """The error in the values of this worker's tensors, or "". It runs after :meth:`set_up`, or knows of the last
        one."""
        raise NotImplementedError

    def looked_at(self, inputs: Sequence[object]) -> Sequence[object]:
        """Make all ranks set up again if this worker's values seem wrong; the set-up then raises on all of them.

        Without the structure check the others would not hear of it: this worker raises alone.
        """
        agreement = self._distdl_agreement
        if agreement is not None:
            agreement.vote_within()  # what a layer around this one agreed on says nothing of values
        if self._distdl_is_setup and self.grid.active and agreement is not None and (why := self._found_here(inputs)):
            if not _core.structure_check():
                raise self._error_of(self.grid.rank, why)
            agreement.forget()
        return inputs

    def _found_here(self, inputs: Sequence[object]) -> str:
        """:meth:`problem_here`, or why there is no answer. What is raised here would be raised on this rank alone."""
        try:
            return self.problem_here(inputs)
        except Exception as error:
            return f"has values that cannot be looked at: {error}"

    def _error_of(self, worker: int, problem: str) -> Exception:
        return self.error(f"{type(self).__name__}: worker {worker} of P_x {problem}")

    def _distdl_module_setup(self, input: tuple[object, ...]) -> None:
        super()._distdl_module_setup(input)
        everyone = self.grid.line(tuple(dict.fromkeys(rank for grid in self.agreeing() for rank in grid.ranks)))
        if not everyone.active:
            return
        problem = self._found_here(input) if self.grid.active else ""
        for rank, found in zip(everyone.ranks, everyone.gather(problem.encode()), strict=True):
            if found:
                raise self._error_of(self.grid.ranks.index(rank), found.decode())
