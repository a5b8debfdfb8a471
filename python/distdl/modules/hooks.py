"""The hooks by which modules of DistDL set themselves up on first use.

torch calls them before ``forward`` of a module of a user. A :class:`distdl.nn.Layer` votes, and calls the hooks for
set-up and teardown only.
"""

from __future__ import annotations

import inspect
from typing import ClassVar

import torch

from distdl.modules.voting import VotingModule
from distdl.partitions.construction import PartitionLike, grid_of
from distdl.partitions.structure import TensorStructure
from distdl.torch_compat.modes import unseen_by_modes


class HookedModule(VotingModule):
    """A module with the set-up hooks of DistDL; :class:`distdl.nn.Module` says how they are used."""

    uses_hooks: ClassVar[bool] = True
    """Whether torch calls the hooks before forward(). They cost some microseconds a call."""

    def __init__(self) -> None:
        super().__init__()
        self._input_structure: TensorStructure | None = None
        if self.uses_hooks:
            self.register_forward_pre_hook(type(self)._before_call, with_kwargs=True)

    def _distdl_agree_among(self, *partitions: PartitionLike) -> None:
        """Let the ranks of these partitions vote on the structure of the input before each call."""
        self.vote_among(partitions)

    def _distdl_global_structure(self, P: PartitionLike) -> list[tuple[list[int], torch.dtype]]:
        """(shape, dtype) of the input on each worker of a partition, as voted; empty on ranks outside."""
        if self.agreement is None or not self.agreement.active:
            return []
        return [worker for worker in self.agreement.structure(0, list(grid_of(P).ranks)) if worker is not None]

    def _distdl_module_setup(self, input: tuple[object, ...]) -> None:
        """Prepare for an input of this structure. Exceptions must be raised on all ranks of the module."""

    def _distdl_module_teardown(self, input: tuple[object, ...]) -> None:
        """Undo :meth:`_distdl_module_setup`."""

    def _distdl_input_changed(self, input: tuple[object, ...]) -> bool:
        """Whether the structure of the input changed, on any rank, since the last call. Called after a set-up."""
        return self._observe_input(input)

    def _distdl_forward_pre_hook(self, module: torch.nn.Module, input: tuple[object, ...]) -> None:
        """Set the module up if necessary. Runs before each call."""
        with unseen_by_modes():
            self._set_up_if_changed(input)

    def _before_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Call the hook with the arguments in forward's order, also named ones."""
        if kwargs or len(args) != 1:
            self.refuse_misfit(self.forward, args, kwargs)
            args = inspect.signature(self.forward).bind(*args, **kwargs).args
        self._distdl_forward_pre_hook(self, args)

    def _set_up_if_changed(self, input: tuple[object, ...]) -> None:
        if not self._distdl_is_setup:
            self._observe_input(input)  # an overridden _distdl_input_changed() may need the set-up
        elif self._distdl_input_changed(input):
            self._distdl_module_teardown(input)
        else:
            return
        with self.setting_up():
            self._distdl_module_setup(input)

    def _observe_input(self, input: tuple[object, ...]) -> bool:
        """Note the structure of the input, and vote: whether it changed, on any rank, since the last call."""
        if self.agreement is not None:
            changed = self.vote(input[:1], self.voted_parameters())
            self.agreement.leave()  # modules within forward() vote by themselves
            return changed
        structure = TensorStructure(input[0])
        changed = structure != self._input_structure
        self._input_structure = structure
        return changed
