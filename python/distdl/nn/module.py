"""The base class of all distributed layers."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from distdl._load import _core
from distdl.agreement import misfit
from distdl.parameters import Layout
from distdl.partition import Partition
from distdl.structure import TensorStructure


def agreement_among(name: str, *partitions: Partition) -> _core.LayerAgreement | None:
    """How the ranks of these partitions agree on the structure of a tensor; None on ranks that know none of them."""
    if partitions[0]._root is None:
        return None
    ranks = list(dict.fromkeys(rank for partition in partitions for rank in partition._ranks))
    return _core.LayerAgreement(name, partitions[0]._root, ranks, ["input"])


def required(tensor: Any) -> Any:
    """What a call brings to the agreement for a tensor that must not be absent."""
    return TypeError("is of type NoneType; it has to be a torch.Tensor") if tensor is None else tensor


def present(structure: list[tuple[list[int], torch.dtype] | None]) -> list[tuple[list[int], torch.dtype]]:
    """Of a tensor that is absent nowhere."""
    return [one for one in structure if one is not None]


class Module(torch.nn.Module):
    """A layer that sets itself up on first use, and again when the structure of its input changes.

    A layer of your own derives from it and overrides the hooks :meth:`_distdl_module_setup`,
    :meth:`_distdl_module_teardown` and, where the default is not what you want, :meth:`_distdl_input_changed`. Whether
    the input changed is a question to all ranks of a layer: one that calls :meth:`_distdl_agree_among` in its
    constructor gets the exact answer, from one small reduction. Without it only this rank's tensor is looked at.

    Like ``torch.nn.Module`` otherwise. All ranks of a layer call it together.
    """

    # Whether the hooks run at all. They cost some microseconds a call.
    _distdl_sets_up = True

    def __init__(self) -> None:
        super().__init__()
        self._distdl_is_setup = False
        self._distdl_input_structure: TensorStructure | None = None
        self._distdl_agreement: _core.LayerAgreement | None = None
        self._distdl_layouts: dict[str, Layout] = {}
        if self._distdl_sets_up:
            self.register_forward_pre_hook(type(self)._distdl_before_call, with_kwargs=True)

    def _distdl_agree_among(self, *partitions: Partition) -> None:
        """Let the ranks of these partitions agree on the structure of the input before each call."""
        self._distdl_agreement = agreement_among(type(self).__name__, *partitions)
        if self._distdl_agreement is not None:
            for name, layout in self._distdl_layouts.items():
                self._distdl_agreement.expect(name, layout.local_shape, not layout.partition.active)

    def _distdl_global_structure(self, partition: Partition) -> list[tuple[list[int], torch.dtype]]:
        """(shape, dtype) of the input on each worker of a partition, as agreed on; empty on ranks outside."""
        agreement = self._distdl_agreement
        return present(agreement.structure(0, partition._ranks)) if agreement is not None and agreement.active else []

    def _distdl_module_setup(self, input: tuple[Any, ...]) -> None:
        """Prepare for an input of this structure. What it raises, it has to raise on all ranks of the layer."""

    def _distdl_module_teardown(self, input: tuple[Any, ...]) -> None:
        """Undo :meth:`_distdl_module_setup`."""

    def _distdl_input_changed(self, input: tuple[Any, ...]) -> bool:
        """Whether the structure of the input changed, on any rank, since the last call."""
        if self._distdl_agreement is not None:
            return self._distdl_agree_on(input[0])
        structure = TensorStructure(input[0])
        changed = structure != self._distdl_input_structure
        self._distdl_input_structure = structure
        return changed

    def _distdl_agree_on(self, input: torch.Tensor | Exception, own: str = "") -> bool:
        """Whether the structure of the input changed on any rank. Collective over the ranks of the layer.

        It raises on all of them if a parameter of one has a wrong shape, if they differ in `own`, or if some ask for
        gradients, also of parameters alone, and others disabled them. Found out later, in the broadcast of a parameter,
        it would be known to the ranks of the broadcast only.
        """
        if self._distdl_agreement is None:
            return False
        owned = [getattr(self, name) for name in self._distdl_layouts]
        others = [one for name, one in self.named_parameters() if name not in self._distdl_layouts]
        changed = self._distdl_agreement.agree([required(input)], owned + others, own)
        self._distdl_agreement.leave()
        return changed

    def _distdl_before_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call the hook with the arguments in the order of forward's, also of those that were passed by name."""
        if kwargs or len(args) != 1:
            self._distdl_check_arguments(args, kwargs)
            args = inspect.signature(self.forward).bind(*args, **kwargs).args
        self._distdl_forward_pre_hook(self, args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, as ``torch.nn.Module`` does."""
        try:
            return super().__call__(*args, **kwargs)
        except TypeError:
            if not self._distdl_sets_up:  # others have done so before the call
                self._distdl_check_arguments(args, kwargs)
            raise

    def _distdl_check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise on all ranks of the layer if what this rank passes does not fit ``forward``."""
        problem = misfit(self.forward, args, kwargs)
        if problem is not None:
            self._distdl_refuse(TypeError(f"cannot be passed to forward(): {problem}"))
            raise problem

    def _distdl_refuse(self, problem: Exception) -> None:
        """Raise on all ranks of the layer what is wrong with the input of this one. In place of agreeing on it."""
        self._distdl_agree_on(problem)

    def _distdl_forward_pre_hook(self, module: torch.nn.Module, input: tuple[Any, ...]) -> None:
        """Set the layer up where it is not, or not for this input. Runs before each call."""
        changed = self._distdl_input_changed(input)
        if self._distdl_is_setup and not changed:
            return
        if self._distdl_is_setup:
            self._distdl_module_teardown(input)
            self._distdl_is_setup = False
        try:
            self._distdl_module_setup(input)
        except Exception:
            if self._distdl_agreement is not None:
                self._distdl_agreement.forget()  # so that the next call asks again, on all ranks
            raise
        self._distdl_is_setup = True

    def _distdl_register_parameter(
        self, name: str, layout: Layout, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        """A parameter of which each rank has its block, or zero volume where it has none."""
        shape = layout.local_shape
        self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device)))
        self._distdl_layouts[name] = layout
