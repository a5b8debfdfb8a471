"""Modules whose ranks vote on each call."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from typing_extensions import Self

from distdl import _core
from distdl.modules.copy_id import CopyId
from distdl.modules.first_values import FirstValues
from distdl.partitions.construction import PartitionLike, grid_of
from distdl.partitions.grid import Grid
from distdl.partitions.signatures import misfit
from distdl.torch_compat.autograd import hide_saved_tensors
from distdl.torch_compat.modes import without_functions


class VotingModule(torch.nn.Module):
    """A module whose ranks call it together, and vote on the structure of its tensors.

    Attributes:
        first_values: facts about the parameters for checks in the first call; None after it.
    """

    first_values: FirstValues | None = None

    def __init__(self) -> None:
        super().__init__()
        self._distdl_agreement: _core.LayerAgreement | None = None
        self._distdl_is_setup = False  # programs written for DistDL read and write it
        self._voters: Grid | None = None  # the ranks of the agreement, in a row
        self._copy_id = CopyId()

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._copy_id = self._copy_id.of_copy()

    def __copy__(self) -> Self:
        """A shallow copy shares the parameters, but sets up and votes by itself."""
        result = type(self).__new__(type(self))
        result.__setstate__(dict(self.__dict__))
        result._distdl_agreement = copy.deepcopy(self._distdl_agreement)
        return result

    @property
    def agreement(self) -> _core.LayerAgreement | None:
        """The vote of the ranks on a call; None where ranks hold none, and on ranks outside."""
        return self._distdl_agreement

    def vote_among(
        self,
        partitions: Sequence[PartitionLike],
        tensors: Sequence[str] = ("input",),
        optional: Sequence[str] = ("input",),
    ) -> None:
        """Let the ranks of these partitions vote before each call.

        Args:
            tensors: the names of the tensors of a call.
            optional: the names of the tensors that may be None.
        """
        grids = [grid_of(P) for P in partitions]
        ranks = tuple(dict.fromkeys(rank for grid in grids for rank in grid.ranks))
        self._voters = grids[0].line(ranks)
        if (root := grids[0].root) is not None:
            name = type(self).__name__
            self._distdl_agreement = _core.LayerAgreement(name, root, [*ranks], [*tensors], [*optional])

    def vote(self, tensors: Sequence[object], parameters: Sequence[torch.Tensor]) -> bool:
        """Vote on a call: whether the structure changed on any rank, since the last call. Collective.

        An exception in place of a tensor is raised on all ranks.
        """
        assert self._distdl_agreement is not None
        if self._copy_id.is_new:
            self.begin_copy()
        return self._distdl_agreement.agree(tensors, parameters)

    def begin_copy(self) -> None:
        """Tell this copy from the original and from other copies, before its first vote. Collective."""
        agreement = self._distdl_agreement
        if agreement is None or not agreement.active or self._voters is None:
            return
        agreement.forget()  # the structure that the ranks know from the original
        is_checked = self.first_values is not None
        text, copied_alike = self._copy_id.begin_first_call(type(self).__name__, self._voters, is_checked)
        agreement.name_copy(text)
        if not copied_alike:  # copied before the original's first call, and after it
            self.first_values = None

    def voted_parameters(self) -> list[torch.Tensor]:
        """The parameters that a vote is about."""
        return list(self.parameters())

    def refuse(self, problem: Exception) -> None:
        """Raise an error of this rank on all ranks of the module, in place of a vote."""
        if self.agreement is not None:
            self.vote([problem], self.voted_parameters())

    def refuse_misfit(
        self, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        """Raise on all ranks of the module if arguments of this rank do not match a function's signature."""
        problem = misfit(function, args, kwargs)
        if problem is not None:
            self.refuse(TypeError(f"cannot be passed to forward(): {problem}"))
            raise problem

    @contextlib.contextmanager
    def setting_up(self) -> Iterator[None]:
        """A context for set-ups. An exception in it makes the next call vote again, on all ranks.

        Later, differentiated calls use what a set-up makes, so inference mode and hooks on saved tensors are off. A
        ``torch.device`` context of this rank would make it raise alone.
        """
        self._distdl_is_setup = False
        try:
            with torch.inference_mode(False), without_functions(), hide_saved_tensors():
                yield
        except Exception:
            if self.agreement is not None:
                self.agreement.forget()
            raise
        self._distdl_is_setup = True
