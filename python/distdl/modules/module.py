"""The base class of all modules over partitions: set-up on first use, and parameters in blocks."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Self

import torch

from distdl import _core
from distdl.modules.copy_id import CopyId
from distdl.modules.first_values import FirstValues
from distdl.parameters.initial import Initializer, fill
from distdl.parameters.layout import Layout, current_kind
from distdl.partitions.comparison import misfit
from distdl.partitions.construction import PartitionLike, grid_of
from distdl.partitions.grid import Grid
from distdl.partitions.structure import TensorStructure
from distdl.torch_compat.autograd import hide_saved_tensors
from distdl.torch_compat.modes import active_modes, is_recorded, without_functions, without_modes


def agreement_among(name: str, grids: Sequence[Grid], tensors: Sequence[str]) -> _core.LayerAgreement | None:
    """The vote of the ranks of these grids on the tensors of a call; None on a rank outside of all grids."""
    if grids[0].root is None:
        return None
    ranks = list(dict.fromkeys(rank for grid in grids for rank in grid.ranks))
    return _core.LayerAgreement(name, grids[0].root, ranks, list(tensors))


class Module(torch.nn.Module):
    """A module that sets itself up on first use, and again when the structure of its input changes.

    A derived class overrides the hooks :meth:`_distdl_module_setup`, :meth:`_distdl_module_teardown` and, if necessary,
    :meth:`_distdl_input_changed`. A constructor that calls :meth:`_distdl_agree_among` lets the ranks vote on a change
    of the input, in one small reduction a call; otherwise each rank looks at its own tensor only.
    :class:`distdl.nn.Layer` does more for derived classes.

    Otherwise like ``torch.nn.Module``. All ranks of a module call it together.

    Attributes:
        layouts: the layouts of the parameters and buffers in blocks, by name.
        first_values: facts about the parameters for warnings in the first call; None after it.
    """

    first_values: FirstValues | None = None
    # Whether torch calls the hooks before forward(). They cost some microseconds a call.
    _distdl_sets_up = True

    def __init__(self) -> None:
        super().__init__()
        alive.add(self)
        self._distdl_is_setup = False
        self._distdl_input_structure: TensorStructure | None = None
        self._distdl_agreement: _core.LayerAgreement | None = None
        self._distdl_all_ranks: Grid | None = None  # the ranks of the agreement, in a row
        self._copy_id = CopyId()
        self.layouts: dict[str, Layout] = {}
        self._initializers: dict[str, Initializer] = {}
        if self._distdl_sets_up:
            self.register_forward_pre_hook(type(self)._distdl_before_call, with_kwargs=True)

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._copy_id = self._copy_id.of_copy()
        alive.add(self)

    def __copy__(self) -> Self:
        """A shallow copy shares the parameters, but sets up and votes by itself."""
        result = type(self).__new__(type(self))
        result.__setstate__(dict(self.__dict__))
        result._distdl_agreement = copy.deepcopy(self._distdl_agreement)
        return result

    # Set-up

    def _distdl_agree_among(self, *partitions: PartitionLike) -> None:
        """Let the ranks of these partitions vote on the structure of the input before each call."""
        grids = [grid_of(P) for P in partitions]
        self._distdl_agreement = agreement_among(type(self).__name__, grids, ["input"])
        self._distdl_all_ranks = grids[0].line(tuple(dict.fromkeys(rank for grid in grids for rank in grid.ranks)))

    def _distdl_global_structure(self, P: PartitionLike) -> list[tuple[list[int], torch.dtype]]:
        """(shape, dtype) of the input on each worker of a partition, as voted; empty on ranks outside."""
        agreement = self._distdl_agreement
        if agreement is None or not agreement.active:
            return []
        return [worker for worker in agreement.structure(0, list(grid_of(P).ranks)) if worker is not None]

    def _distdl_module_setup(self, input: tuple[object, ...]) -> None:
        """Prepare for an input of this structure. Exceptions must be raised on all ranks of the module."""

    def _distdl_module_teardown(self, input: tuple[object, ...]) -> None:
        """Undo :meth:`_distdl_module_setup`."""

    def _distdl_input_changed(self, input: tuple[object, ...]) -> bool:
        """Whether the structure of the input changed, on any rank, since the last call. Called after a set-up."""
        return self._distdl_look_at(input)

    def _distdl_look_at(self, input: tuple[object, ...]) -> bool:
        """Note the structure of the input, and vote: whether it changed, on any rank, since the last call."""
        if self._distdl_agreement is not None:
            changed = self._distdl_agree(input[:1], list(self.parameters()))
            self._distdl_agreement.leave()  # modules within forward() vote by themselves
            return changed
        structure = TensorStructure(input[0])
        changed = structure != self._distdl_input_structure
        self._distdl_input_structure = structure
        return changed

    def _distdl_before_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Call the hook with the arguments in forward's order, also named ones."""
        if kwargs or len(args) != 1:
            self._distdl_check_arguments(args, kwargs)
            args = inspect.signature(self.forward).bind(*args, **kwargs).args
        self._distdl_forward_pre_hook(self, args)

    def _distdl_check_arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raise on all ranks of the module if arguments of this rank do not match ``forward``."""
        problem = misfit(self.forward, args, kwargs)
        if problem is not None:
            self._distdl_refuse(TypeError(f"cannot be passed to forward(): {problem}"))
            raise problem

    def _distdl_refuse(self, problem: Exception) -> None:
        """Raise an error of this rank on all ranks of the module, in place of a vote."""
        if self._distdl_agreement is not None:
            self._distdl_agree([problem], list(self.parameters()))

    def _distdl_agree(
        self, tensors: Sequence[object], parameters: Sequence[torch.Tensor], compared: str = "", key: int | None = None
    ) -> bool:
        """The vote of a call, which includes the copy of the module that is called."""
        agreement, group, which = self._distdl_agreement, self._distdl_all_ranks, self._copy_id.text
        assert agreement is not None
        if which is None and agreement.active and group is not None:
            agreement.forget()  # the structure that the ranks know from the original
            return self._copy_id.first_call(
                self, group, lambda which: agreement.agree(tensors, parameters, f"{which} {compared}", key)
            )
        return agreement.agree(tensors, parameters, f"{which} {compared}" if which else compared, key)

    def _distdl_forward_pre_hook(self, module: torch.nn.Module, input: tuple[object, ...]) -> None:
        """Set the module up if necessary. Runs before each call."""
        if not active_modes() or is_recorded():
            self._distdl_prepare(input)  # the vote refuses recorders
            return
        # Modes must see the same operators in each call: selective checkpointing counts them.
        with without_modes():
            self._distdl_prepare(input)

    def _distdl_prepare(self, input: tuple[object, ...]) -> None:
        if not self._distdl_is_setup:
            self._distdl_look_at(input)  # an overridden _distdl_input_changed() may need the set-up
        elif self._distdl_input_changed(input):
            self._distdl_module_teardown(input)
            self._distdl_is_setup = False
        else:
            return
        try:
            # Later, differentiated calls use these tensors. A torch.device() context of this rank would make it raise
            # alone.
            with torch.inference_mode(False), without_functions(), hide_saved_tensors():
                self._distdl_module_setup(input)
        except Exception:
            if self._distdl_agreement is not None:
                self._distdl_agreement.forget()  # the next call votes again, on all ranks
            raise
        self._distdl_is_setup = True

    # Parameters and buffers in blocks

    def declare_parameter(
        self,
        name: str,
        P: PartitionLike,
        shape: Sequence[int],
        axes: Sequence[int | None],
        *,
        first_of: Sequence[int] = (),
        initialize: Initializer | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Register a parameter in blocks on the workers of a partition.

        Initializers, optimizers, ``state_dict()``, :func:`distdl.sequential_state_dict` and
        :func:`distdl.load_sequential` know it. :func:`distdl.parameter_layout` places its blocks.

        Args:
            name: of the attribute. On ranks without a block, the attribute has no rows. A name with dots is of a
                parameter of a module within, which is made if necessary.
            P: the partition of the workers that use it.
            shape: of the whole parameter.
            axes: for each of its dimensions the axis of P that splits it into balanced blocks, or None.
            first_of: axes of P along which only the workers at place 0 use it.
            initialize: fills the whole parameter in place, as the functions of ``torch.nn.init`` do; called by
                :meth:`reset_parameters`.
            dtype, device: as in ``torch.empty``.

        Every rank of the module must call it, with the same arguments.
        """
        layout = Layout(grid_of(P), tuple(shape), tuple(axes), tuple(first_of), current_kind())
        parameter = torch.nn.Parameter(torch.empty(layout.local_shape, dtype=dtype, device=device))
        *within, leaf = name.split(".")
        owner: torch.nn.Module = self
        for part in within:
            if part not in dict(owner.named_children()):
                owner.register_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        owner.register_parameter(leaf, parameter)
        self._declare(name, layout, initialize)

    def declare_buffer(
        self,
        name: str,
        P: PartitionLike,
        shape: Sequence[int],
        axes: Sequence[int | None],
        *,
        initialize: Initializer | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        persistent: bool = True,
    ) -> None:
        """Register a buffer of which each worker has the block that it uses; otherwise as :meth:`declare_parameter`."""
        layout = Layout(grid_of(P), tuple(shape), tuple(axes), kind="replicated")
        self.register_buffer(name, torch.empty(layout.local_shape, dtype=dtype, device=device), persistent)
        self._declare(name, layout, initialize)

    def _declare(self, name: str, layout: Layout, initialize: Initializer | None) -> None:
        self.layouts[name] = layout
        if initialize is not None:
            self._initializers[name] = initialize

    def reset_parameters(self) -> None:
        """Initialize the declared parameters and buffers; every rank must call it, with the same seed."""
        for name, tensor in self._declared():
            if name in self._initializers:
                fill(tensor, self.layouts[name], self._initializers[name])

    def _declared(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, attrgetter(name)(self)) for name in self.layouts)


alive: weakref.WeakSet[Module] = weakref.WeakSet()
"""All modules over partitions of this process, also copies and unpickled modules."""


def refuse_distributed(what: str, module: torch.nn.Module) -> None:
    """Raise TypeError if a module of torch is or holds a layer over partitions.

    Args:
        what: the function or class that takes the module, for messages.
    """
    for part in module.modules():
        if isinstance(part, Module):
            kind, layer = type(module).__name__, type(part).__name__
            raise TypeError(f"{what}: {kind} holds a {layer}, a layer over partitions; {what} is for layers of torch")
