"""Layers made from layers of torch.nn: options, and weights from one rank."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable

import torch
from torch.nn.parameter import is_lazy
from typing_extensions import Self

from distdl.modules.first_values import forget_draws
from distdl.modules.module import Module
from distdl.modules.sequential_state import load_sequential
from distdl.modules.state import extra_states, tensors_in_state
from distdl.partitions.construction import PartitionLike, constructing, tell
from distdl.partitions.grid import Grid


def _optional_arguments(kind: type[torch.nn.Module]) -> list[inspect.Parameter]:
    return [option for option in inspect.signature(kind).parameters.values() if option.default is not option.empty]


class FromSequential(Module):
    """Construction of a layer from its sequential layer."""

    grid: Grid

    @classmethod
    def sequential_classes(cls) -> tuple[type[torch.nn.Module], ...]:
        """The layer of torch.nn that this layer distributes: of the same name, or of the name of a base class."""
        layers = itertools.takewhile(lambda kind: kind is not FromSequential, cls.__mro__)
        names = [kind.__name__.removeprefix("Distributed") for kind in layers]
        names = [alias for name in names for alias in (name, re.sub("^(Feature|Channel|General)", "", name))]
        return tuple(getattr(torch.nn, name) for name in names if hasattr(torch.nn, name))[:1]

    @classmethod
    @functools.cache
    def names_of_arguments(cls) -> tuple[str, ...]:
        """The names of the constructor's arguments; ``**options`` stands for the arguments of the next constructor."""
        names: list[str] = []
        for constructor in (vars(kind)["__init__"] for kind in cls.__mro__ if "__init__" in vars(kind)):
            parameters = inspect.signature(constructor).parameters.values()
            names += [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
                break
        return tuple(dict.fromkeys(names))

    @classmethod
    def options_of(cls, module: torch.nn.Module) -> dict[str, object]:
        """The constructor's options for a layer of torch.nn."""
        options = {name: getattr(module, name) for name in cls.names_of_arguments() if hasattr(module, name)}
        if "bias" in options:
            options["bias"] = options["bias"] is not None and options["bias"] is not False
        parameter = next(module.parameters(), None)
        if parameter is not None:
            options["dtype"] = parameter.dtype
            options["device"] = None if parameter.device.type in ("cpu", "meta") else parameter.device
        return options

    @classmethod
    def unknown_options(cls, module: torch.nn.Module) -> list[str]:
        """The options of a layer of torch.nn that this layer lacks, with their values; defaults are left out.

        A newer torch may have further options.
        """
        twin = next(kind for kind in cls.sequential_classes() if isinstance(module, kind))
        missing = [option for option in _optional_arguments(twin) if option.name not in cls.names_of_arguments()]
        values = [(x.name, getattr(module, x.name, x.default), x.default) for x in missing]
        return [f"{name}={value!r}" for name, value, default in values if value is not default and value != default]

    @classmethod
    def _unfit(cls, module: object) -> TypeError | None:
        """The reason why this class cannot distribute a module; None if it can."""
        if not isinstance(module, cls.sequential_classes()):
            twins = (
                " or ".join(f"torch.nn.{twin.__name__}" for twin in cls.sequential_classes())
                or "nothing, since it has no twin in torch.nn"
            )
            problem = f"a {type(module).__name__}; it takes {twins}"
        elif any(map(is_lazy, module.parameters())):
            problem = f"a {type(module).__name__} whose parameters are not initialized; call it once before"
        elif unknown := cls.unknown_options(module):
            problem = f"a {type(module).__name__} with {', '.join(unknown)}, which this layer does not know"
        else:
            return None
        return TypeError(f"{cls.__name__}: from_sequential was passed {problem}")

    @classmethod
    def from_sequential(
        cls, module: torch.nn.Module, P_x: PartitionLike, *partitions: PartitionLike, root: int = 0, **options: object
    ) -> Self:
        """Make the layer from a layer of torch.nn, with its options and its weights.

        Args:
            module: the layer of torch.nn, with the same options on all ranks.
            P_x, partitions: of the constructor, in its order.
            root: the rank whose weights are used. If they are on the meta device, the layer's own initial values stay.
            options: of the constructor that torch.nn lacks, or that replace options of ``module``.

        Raises:
            TypeError: on all ranks, if ``module`` is not a layer of torch.nn that this class distributes, or has other
                parameters.
            ValueError, RuntimeError: on all ranks, if ``root`` is not among them, and exceptions of the constructor and
                of :func:`distdl.load_sequential`.

        Collective like constructing the layer.
        """
        problem = cls._unfit(module)
        if problem is not None:
            tell(cls.__name__, problem, [P_x, *partitions, module])
            raise problem
        make: Callable[..., Self] = cls
        layer = make(P_x, *partitions, **{**cls.options_of(module), **options})
        layer.train(module.training)
        layer.take_weights(module, root)
        return layer

    def take_weights(self, module: torch.nn.Module, root: int) -> None:
        """Take the parameters and buffers of the sequential layer. Collective, as :meth:`from_sequential`."""
        group, parameters = self.grid.constructing_ranks(), dict(module.named_parameters())
        with constructing(f"{type(self).__name__}.from_sequential", {"ranks": group}, {"root": root}):
            if group.known and root not in group.ranks:
                raise ValueError(f"root {root} is none of the ranks {list(group.ranks)} of the partitions")
            own = dict(self.named_parameters(remove_duplicate=False))
            if unknown := [name for name in parameters if name not in own]:
                raise TypeError(f"the layer has no parameters {unknown}, which the module has")
            for name, parameter in parameters.items():
                own[name].requires_grad_(parameter.requires_grad)
            state = tensors_in_state(module)
            is_meta = any(tensor.is_meta for tensor in state.values())
        if not group.known or not any(getattr(part, "layouts", None) for part in self.modules()):
            return
        if group.gather(bytes([is_meta]))[group.ranks.index(root)] == bytes([0]):
            load_sequential(self, state | extra_states(module), root)
            forget_draws(self)
