"""Layers whose parameters have other names than in torch.nn, with the further options of the descendant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from distdl.classic.arguments import FURTHER
from distdl.classic.buffer import MPIBufferManager
from distdl.classic.old_states import OldStates, in_blocks
from distdl.modules.first_values import FirstValues, versions
from distdl.nn.base.option_types import declared_options
from distdl.parameters.layout import parameter_layout
from distdl.partitions.construction import PartitionLike, constructing

Passed: TypeAlias = Any
"""An argument of a constructor, before it is checked."""


class _Divided(torch.autograd.Function):
    """The identity, whose gradient is divided by a number."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number = number
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient / ctx.number, None


class OldLayer(OldStates):
    """The base class of old layers with parameters: names, states, and further options of the descendant.

    Attributes:
        scale_backward: dimensions of P_x, by the product of whose extents gradients of parameters are divided.
    """

    scale_backward: int | slice | Sequence[int] | bool | None = None
    auto_clear_buffer: bool = True

    def construct(self, *args: Passed, **options: Passed) -> None:
        """Construct the layer from all options of an old constructor; see :func:`old_arguments`.

        Partitions that our layer does not have are left alone: parameters live on its own.
        """
        further = {name: options.pop(name) for name in FURTHER}
        self.__dict__["buffer_manager"] = further.pop("buffer_manager") or MPIBufferManager()
        declared = declared_options(type(self))
        self.construct_ours(**{name: options[name] for name in options if name in declared or name[:2] != "P_"})
        self.take_further(**further)

    def construct_ours(self, **options: object) -> None:
        """Call the constructor of our layer."""
        super().__init__(**options)  # type: ignore[arg-type]

    def take_further(
        self,
        collect_state: bool,
        scale_backward: int | slice | Sequence[int] | bool | None,
        auto_clear_buffer: bool,
    ) -> None:
        """Keep the options that the descendant has in all layers. Collective over the ranks that construct the layer.

        Raises:
            ValueError: on all ranks, if they differ among ranks, which would wait for each other later, or if
                ``scale_backward`` names no dimensions of P_x.
        """
        options = {"collect_state": bool(collect_state), "scale_backward": scale_backward}
        with constructing(type(self).__name__, {"P_x": self.grid}, options):
            self.collect_state, self.scale_backward = bool(collect_state), scale_backward
            self._divisor()
        self.auto_clear_buffer = auto_clear_buffer
        self.set_aside()
        if self.first_values is not None:  # as drawn, of fewer parameters
            self.first_values = FirstValues(self.first_values.drawn_from, versions(self))

    # Names

    def layer_within(self, name: str) -> torch.nn.Module:
        """The layer of torch.nn that a program finds there, without its own parameters."""
        return torch.nn.Module()

    def declare_parameter(
        self, name: str, P: PartitionLike, shape: Sequence[int], axes: Sequence[int | None], **options: object
    ) -> None:
        """Declare a parameter under its old name."""
        old = self.old_name(name)
        within = old.rpartition(".")[0]
        if within and within not in self._modules:
            self.register_module(within, self.layer_within(within))
        super().declare_parameter(old, P, shape, axes, **options)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Register a parameter under its old name."""
        within, _, own = self.old_name(name).rpartition(".")
        if within:
            self.get_submodule(within).register_parameter(own, param)
        else:
            super().register_parameter(own, param)

    if not TYPE_CHECKING:  # attributes keep their types

        def __getattr__(self, name):
            old = type(self).old_names.get(name)
            if old is None or name in self.__dict__.get("_parameters", ()):
                return super().__getattr__(name)
            return attrgetter(old)(self)

    @contextmanager
    def with_names_of_torch(self) -> Iterator[None]:
        """Let parameters stand under the names of torch.nn, unless a program put something else within."""
        modules = self._modules  # type: ignore[has-type]
        parameters, layouts = self._parameters, self.layouts  # type: ignore[has-type]
        within = {old.partition(".")[0] for old in self.old_names.values() if "." in old}
        own = {name: attrgetter(old)(self) for name, old in self.old_names.items() if hasattr(self, old.split(".")[0])}
        here = {id(parameter) for parameter in own.values() if parameter is not None}
        elsewhere = [
            parameter
            for name in within & set(modules)
            for parameter in modules[name].parameters()
            if id(parameter) not in here
        ]
        if not own or elsewhere:
            yield
            return
        old_names = {old: name for name, old in self.old_names.items()}
        self._modules = {name: module for name, module in modules.items() if name not in within}
        self._parameters = own | {name: parameter for name, parameter in parameters.items() if name not in old_names}
        self.layouts = {old_names.get(name, name): layout for name, layout in layouts.items()}
        try:
            yield
        finally:
            self._modules, self._parameters, self.layouts = modules, parameters, layouts

    @contextmanager
    def in_order_of_torch(self, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
        """Let elements of parameters, gradients and states stand as in torch.nn. Here they do. Collective."""
        yield

    def take_weights(self, module: torch.nn.Module, root: int) -> None:
        """Take the parameters and buffers of a layer of torch.nn. Collective."""
        with as_in_torch(self):
            super().take_weights(module, root)

    # Gradients, and the descendant's hooks

    def _divisor(self) -> int:
        """By how much gradients are divided."""
        scale = self.scale_backward
        if scale is None or scale is False or not self.grid.known:
            return 1
        if scale is True:
            return self.grid.size
        shape = self.grid.shape
        if isinstance(scale, slice):
            dims: Sequence[int] = range(self.grid.dim)[scale]
        else:
            dims = [scale] if isinstance(scale, int) else scale
        try:
            return math.prod(shape[d] for d in dims)
        except (IndexError, TypeError) as error:
            raise ValueError(f"{type(self).__name__}: scale_backward={scale!r}; P_x has shape {list(shape)}") from error

    def _divided(self, parameters: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        divisor = self._divisor()
        return parameters if divisor == 1 else [_Divided.apply(parameter, divisor) for parameter in parameters]

    def parameters_in_use(self) -> Sequence[torch.Tensor]:
        """The blocks that this worker uses, with gradients as ``scale_backward`` says."""
        return self._divided(super().parameters_in_use())

    def start_parameters(self) -> Callable[[], Sequence[torch.Tensor]]:
        """Start moving the parameters, with gradients as ``scale_backward`` says."""
        wait = super().start_parameters()
        return lambda: self._divided(wait())

    def collect_weights(self) -> None:
        """Do nothing: parameters are gathered when they are used."""

    def prefetch_weights(self) -> None:
        """Do nothing: parameters are gathered when they are used."""

    def clear_weight_buffer(self) -> None:
        """Do nothing: gathered parameters are not kept."""


class Sharded(OldLayer):
    """A layer of which each worker keeps a part of the parameters, which are gathered for use."""

    def construct(self, *args: Passed, **options: Passed) -> None:
        with parameter_layout("sharded"):
            super().construct(**options)


@contextmanager
def as_in_torch(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Let a model show names and the order of torch.nn, and states in blocks. Collective, as the functions within are.

    Args:
        model: the model.
        optimizer: whose states are to have the same order.
    """
    with in_blocks(model), ExitStack() as shown:
        for layer in model.modules():
            if isinstance(layer, OldLayer):
                shown.enter_context(layer.with_all_parameters())
                shown.enter_context(layer.with_names_of_torch())
                shown.enter_context(layer.in_order_of_torch(optimizer))
        yield
