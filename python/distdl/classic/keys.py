"""Layers whose parameters have other names than in torch.nn, and whose states come in other forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from distdl.classic.arguments import FURTHER
from distdl.classic.attributes import PartitionsOfParameters
from distdl.classic.buffer import MPIBufferManager
from distdl.classic.nothing import OldParameters
from distdl.modules.first_values import FirstValues, versions
from distdl.modules.sequential_state import load_sequential, sequential_state_dict
from distdl.nn.base.option_types import declared_options
from distdl.parameters.layout import parameter_layout
from distdl.partitions.construction import PartitionLike, constructing
from distdl.partitions.structure import zero_volume_tensor

Passed: TypeAlias = Any
"""An argument of a constructor, before it is checked."""

ALIASES = {
    "weight": ("weight", "sublinear.weight", "conv_layer.weight", "gamma"),
    "bias": ("bias", "sublinear.bias", "conv_layer.bias", "beta"),
}
"""The keys under which a file may have a parameter, by its name in torch.nn."""


class _Divided(torch.autograd.Function):
    """The identity, whose gradient is divided by a number."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number = number
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient / ctx.number, None


class OldLayer(OldParameters, PartitionsOfParameters):
    """What the classic form of a layer adds to ours: names, states, and further options of the descendant.

    A file with the state of a rank may call a parameter by any of the names in ``ALIASES``. What it says of parameters
    that this rank has nothing of is ignored, and of a whole tensor this rank takes its part.

    Attributes:
        collect_state: whether ``state_dict()`` has whole tensors on rank 0, and ``load_state_dict()`` takes them
            from there. Both are collective then.
        scale_backward: dimensions of P_x, by the product of whose extents gradients of parameters are divided.
    """

    collect_state: bool = False
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
        self, name: str, P: PartitionLike, shape: Sequence[int], axes: Sequence[int | None], **more: object
    ) -> None:
        """As that of all layers, under the old name."""
        old = self.old_name(name)
        within = old.rpartition(".")[0]
        if within and within not in self._modules:
            self.register_module(within, self.layer_within(within))
        super().declare_parameter(old, P, shape, axes, **more)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """As in torch.nn, under the old name."""
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
        here = {id(one) for one in own.values() if one is not None}
        elsewhere = [one for name in within & set(modules) for one in modules[name].parameters() if id(one) not in here]
        if not own or elsewhere:
            yield
            return
        old_names = {old: name for name, old in self.old_names.items()}
        self._modules = {name: one for name, one in modules.items() if name not in within}
        self._parameters = own | {name: one for name, one in parameters.items() if name not in old_names}
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
        """As in our layers."""
        with as_in_torch(self):
            super().take_weights(module, root)

    # Gradients, and the descendant's hooks

    def _divisor(self) -> int:
        """By how much gradients are divided."""
        given = self.scale_backward
        if given is None or given is False or not self.grid.known:
            return 1
        if given is True:
            return self.grid.size
        shape = self.grid.shape
        if isinstance(given, slice):
            dims: Sequence[int] = range(self.grid.dim)[given]
        else:
            dims = [given] if isinstance(given, int) else given
        try:
            return math.prod(shape[d] for d in dims)
        except (IndexError, TypeError) as error:
            raise ValueError(f"{type(self).__name__}: scale_backward={given!r}; P_x has shape {list(shape)}") from error

    def _divided(self, parameters: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        divisor = self._divisor()
        return parameters if divisor == 1 else [_Divided.apply(one, divisor) for one in parameters]

    def parameters_in_use(self) -> Sequence[torch.Tensor]:
        """As in our layers, with gradients as ``scale_backward`` says."""
        return self._divided(super().parameters_in_use())

    def start_parameters(self) -> Callable[[], Sequence[torch.Tensor]]:
        """As in our layers, with gradients as ``scale_backward`` says."""
        wait = super().start_parameters()
        return lambda: self._divided(wait())

    def collect_weights(self) -> None:
        """Do nothing: parameters are gathered when they are used."""

    def prefetch_weights(self) -> None:
        """Do nothing: parameters are gathered when they are used."""

    def clear_weight_buffer(self) -> None:
        """Do nothing: gathered parameters are not kept."""

    # States

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, torch.Tensor]:
        """As in torch.nn; with ``collect_state`` whole tensors on rank 0, collective over all ranks of the layer."""
        found: dict[str, torch.Tensor] = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        return self.gather_state_dict(self, found, str(prefix)) if self.collect_state else found

    def gather_state_dict(
        self, module: torch.nn.Module, destination: dict[str, torch.Tensor], prefix: str = "", *more: object
    ) -> dict[str, torch.Tensor]:
        """Put whole tensors into a state on rank 0, and zero-volume ones on all others. Collective."""
        with self.with_all_parameters(), in_blocks(self):
            wholes, names = sequential_state_dict(self), list(self._own())
        for name in names:
            whole = wholes.get(name)
            destination[prefix + name] = zero_volume_tensor() if whole is None else self.in_order(name, whole, True)
        return destination

    def scatter_state_dict(
        self, module: torch.nn.Module, destination: dict[str, torch.Tensor], prefix: str = "", *more: object
    ) -> dict[str, torch.Tensor]:
        """Take whole tensors out of a state on rank 0, and put this rank's parts in place of them. Collective."""
        with self.with_all_parameters(), in_blocks(self):
            names = self._own()
            wholes = {name: destination[prefix + name] for name in names if prefix + name in destination}
            load_sequential(self, {name: self.in_order(name, one, False) for name, one in wholes.items()})
            destination.update({prefix + name: one.detach().clone() for name, one in self._own().items()})
        return destination

    def in_order(self, name: str, whole: torch.Tensor, gathered: bool) -> torch.Tensor:
        """A whole parameter in the order of the sequential layer, or in that of this layer's blocks."""
        return whole

    def _own(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by their names in a state."""
        kept = {name: one for name, one in self.named_buffers() if name not in self._non_persistent_buffers_set}
        return {**dict(self.named_parameters(remove_duplicate=False)), **kept}

    def _load_from_state_dict(self, state_dict: dict[str, torch.Tensor], prefix: str, *args: object) -> None:
        absent = self.set_aside_names()
        with self.with_all_parameters():
            self._take_from(state_dict, prefix)
            super()._load_from_state_dict(state_dict, prefix, *args)
        for name in absent:  # which the layers within do not know here
            state_dict.pop(prefix + name, None)

    def _take_from(self, state_dict: dict[str, torch.Tensor], prefix: str) -> None:
        """Put what this rank has of the tensors of a state in place of them, under this layer's names."""
        in_torch = {old: name for name, old in self.old_names.items()}
        for name in self._own():
            others = [key for key in ALIASES.get(in_torch.get(name, name), ()) if prefix + key in state_dict]
            if prefix + name not in state_dict and others:
                state_dict[prefix + name] = state_dict.pop(prefix + others[0])
        if self.collect_state:
            self.scatter_state_dict(self, state_dict, prefix)
            self.put_back()  # for the caller, which sets them aside
        for name, own in self._own().items():
            if own.numel() == 0:
                state_dict[prefix + name] = own
            elif prefix + name in state_dict:
                state_dict[prefix + name] = self._part(name, own, state_dict[prefix + name])

    def _part(self, name: str, own: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """What a file has for a parameter or buffer, in the shape that this rank has."""
        layout = self.layouts.get(name)
        if given.shape == own.shape or layout is None:
            return given
        if tuple(given.shape) == layout.shape and layout.intervals is not None:
            return self.in_order(name, given, False)[tuple(slice(*one) for one in layout.intervals)]
        return given.reshape(own.shape) if given.numel() == own.numel() else given


class Sharded(OldLayer):
    """A layer of which each worker keeps a part of the parameters, which are gathered for use."""

    def construct(self, *args: Passed, **options: Passed) -> None:
        with parameter_layout("sharded"):
            super().construct(**options)


@contextmanager
def in_blocks(model: torch.nn.Module) -> Iterator[None]:
    """Let the states of all layers of a model be those of their blocks, also of layers with ``collect_state``."""
    collecting = [one for one in model.modules() if isinstance(one, OldLayer) and one.collect_state]
    for one in collecting:
        one.collect_state = False
    try:
        yield
    finally:
        for one in collecting:
            one.collect_state = True


@contextmanager
def as_in_torch(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Let a model show names and the order of torch.nn, and states in blocks. Collective, as the functions within are.

    Args:
        model: the model.
        optimizer: whose states are to have the same order.
    """
    with in_blocks(model), ExitStack() as shown:
        for one in model.modules():
            if isinstance(one, OldLayer):
                shown.enter_context(one.with_all_parameters())
                shown.enter_context(one.with_names_of_torch())
                shown.enter_context(one.in_order_of_torch(optimizer))
        yield
