"""Layers from their sequential twins: options, and weights from one rank."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from typing import Self

import torch
from torch.nn.parameter import is_lazy

from distdl.collective.construction import PartitionLike, constructing, tell
from distdl.collective.grid import Grid
from distdl.nn.module import Module
from distdl.nn.noticed import forget_draws
from distdl.nn.states import extra_states, tensors_in_state
from distdl.state import load_sequential


def _parameters_of(kind: type[torch.nn.Module]) -> list[inspect.Parameter]:
    """The options of a class of torch.nn: what its constructor need not be given."""
    return [one for one in inspect.signature(kind).parameters.values() if one.default is not one.empty]


class FromSequential(Module):
    """The relation of a layer to its sequential layer: its class, and how the layer is made from it."""

    grid: Grid

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        """The layers of torch.nn that this one does the same as: of the same name, also for a class that derives."""
        layers = itertools.takewhile(lambda kind: kind is not FromSequential, cls.__mro__)
        names = [kind.__name__.removeprefix("Distributed") for kind in layers]
        names = [one for name in names for one in (name, re.sub("^(Feature|Channel|General)", "", name))]
        return tuple(getattr(torch.nn, name) for name in names if hasattr(torch.nn, name))[:1]

    @classmethod
    def names_of_arguments(cls) -> list[str]:
        """The names of the constructor's arguments; ``**more`` stands for those of the next constructor."""
        names: list[str] = []
        for constructor in (vars(kind)["__init__"] for kind in cls.__mro__ if "__init__" in vars(kind)):
            parameters = inspect.signature(constructor).parameters.values()
            names += [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
            if all(one.kind is not one.VAR_KEYWORD for one in parameters):
                break
        return list(dict.fromkeys(names))

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        """The options of this layer's constructor, as a layer of torch.nn has them."""
        options = {name: getattr(module, name) for name in cls.names_of_arguments() if hasattr(module, name)}
        if "bias" in options:
            options["bias"] = options["bias"] is not None
        parameter = next(module.parameters(), None)
        if parameter is not None:
            options["dtype"] = parameter.dtype
            options["device"] = None if parameter.device.type in ("cpu", "meta") else parameter.device
        return options

    @classmethod
    def unknown_options(cls, module: torch.nn.Module) -> list[str]:
        """The options of a layer of torch.nn that this layer does not know, with their values; defaults are left out.

        A newer torch may have such, or only torch.nn's layer has them.
        """
        twin = next(kind for kind in cls.sequential_classes() if isinstance(module, kind))
        further = [one for one in _parameters_of(twin) if one.name not in cls.names_of_arguments()]
        given = [(one.name, getattr(module, one.name, one.default), one.default) for one in further]
        return [f"{name}={value!r}" for name, value, default in given if value is not default and value != default]

    @classmethod
    def _unfit(cls, module: object) -> TypeError | None:
        """Why there is no layer that does the same as this module; None if there is."""
        if not isinstance(module, cls.sequential_classes()):
            twins = " or ".join(f"torch.nn.{twin.__name__}" for twin in cls.sequential_classes()) or "no other layer"
            what = f"a {type(module).__name__}; it takes {twins}"
        elif any(map(is_lazy, module.parameters())):
            what = f"a {type(module).__name__} whose parameters are not initialized; call it once before"
        elif unknown := cls.unknown_options(module):
            what = f"a {type(module).__name__} with {', '.join(unknown)}, which this layer does not know"
        else:
            return None
        return TypeError(f"{cls.__name__}: from_sequential was passed {what}")

    @classmethod
    def from_sequential(
        cls, module: torch.nn.Module, P_x: PartitionLike, *partitions: PartitionLike, root: int = 0, **more: object
    ) -> Self:
        """The layer that does what a layer of torch.nn does, with its options and its weights.

        Args:
            module: the layer of torch.nn, with the same options on all ranks.
            P_x, partitions: those of the constructor, in its order.
            root: the rank whose weights count. Where they are on the meta device, the layer's own first values stay.
            more: options of the constructor that torch.nn does not have, or in place of those that ``module`` has.

        Raises:
            TypeError: on all ranks, if ``module`` is no layer of torch.nn that this one does the same as, or has other
                parameters.
            ValueError, RuntimeError: on all ranks, if ``root`` is none of them, and what the constructor and
                :func:`distdl.load_sequential` raise.

        Collective like constructing the layer.
        """
        problem = cls._unfit(module)
        if problem is not None:
            tell(cls.__name__, problem, [P_x, *partitions, module])
            raise problem
        make: Callable[..., Self] = cls
        layer = make(P_x, *partitions, **{**cls.options_of(module), **more})
        layer.train(module.training)
        layer.take_weights(module, root)
        return layer

    def take_weights(self, module: torch.nn.Module, root: int) -> None:
        """Take the parameters and buffers of the sequential layer. As :meth:`from_sequential`, which calls it."""
        everyone, parameters = self.grid.constructing_ranks(), dict(module.named_parameters())
        with constructing(f"{type(self).__name__}.from_sequential", {"ranks": everyone}, {"root": root}):
            if everyone.known and root not in everyone.ranks:
                raise ValueError(f"root {root} is none of the ranks {list(everyone.ranks)} of the partitions")
            if unknown := [name for name in parameters if name not in dict(self.named_parameters())]:
                raise TypeError(f"the layer has no parameters {unknown}, which the module has")
            for name, parameter in parameters.items():
                self.get_parameter(name).requires_grad_(parameter.requires_grad)
            state = tensors_in_state(module)
            is_meta = any(tensor.is_meta for tensor in state.values())
        if not everyone.known or not any(getattr(one, "layouts", None) for one in self.modules()):
            return
        if everyone.gather(bytes([is_meta]))[everyone.ranks.index(root)] == bytes([0]):
            load_sequential(self, state | extra_states(module), root)
            forget_draws(self)
