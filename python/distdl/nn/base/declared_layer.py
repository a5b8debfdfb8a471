"""The construction of layers: options, partitions and parameters, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import ClassVar

import torch

from distdl.modules.first_values import FirstValues, checksum, versions
from distdl.nn.base.from_sequential import FromSequential
from distdl.nn.base.option_types import checked
from distdl.nn.base.options import NOT_ATTRIBUTES, comparable, kind_of, split_arguments
from distdl.parameters.layout import OF_LAYERS, current_kind
from distdl.parameters.transport import ParameterTransport
from distdl.partitions.construction import PartitionLike, constructing
from distdl.partitions.grid import Grid
from distdl.partitions.partition import Partition


class DeclaredLayer(FromSequential):
    """A layer whose constructor declares its options, partitions and parameters.

    Attributes:
        passed: the options as they were passed to the constructor.
        partitions: the names of the partitions, in order.
        options: the names of the options, in order.
        tensors: names of the arguments of ``compute`` that are tensors; they come first.
        default_layout: of its parameters, as in :func:`distdl.parameter_layout`.
        brings_parameters: whether :meth:`parameters_in_use` moves parameters to the workers that use them.
    """

    uses_hooks = False
    tensors: ClassVar[tuple[str, ...]] = ("input",)
    brings_parameters: ClassVar[bool] = True
    default_layout: ClassVar[str] = OF_LAYERS

    reserved_names: ClassVar[frozenset[str]] = frozenset()
    """Attributes of every layer, which no option may be called."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        super().__init__()
        name = type(self).__name__
        partitions, options = split_arguments(arguments)
        if taken := [key for key in options if key in self.reserved_names]:
            raise TypeError(f"{name}: an option must not be called {taken[0]!r}, which is an attribute of every layer")
        self.options = tuple(options)
        self.partitions, self.passed = tuple(partitions), options
        known = {P: value for P, value in partitions.items() if value is not None or P == "P_x"}
        compared = {key: comparable(value) for key, value in options.items()}
        compared |= {"device": kind_of(options["device"])} if "device" in options else {}
        if (layout := current_kind(self.default_layout)) != self.default_layout:
            compared["parameter_layout"] = layout
        with constructing(name, known, compared) as grids:
            self.__dict__.update(dict.fromkeys(partitions))
            for (P, value), grid in zip(known.items(), grids, strict=True):
                kind = type(value) if isinstance(value, Partition) else Partition
                self.__dict__[P] = kind.of_grid(grid, like=value)
            self.grid = grids[0]
            attributes = checked(self, options)
            self.__dict__.update({key: value for key, value in attributes.items() if key not in NOT_ATTRIBUTES})
            self.check_options()
            compared.update(self.options_to_compare())
        with constructing(name, known, {"declared": self._declarations()}):
            pass
        self._draw_parameters()
        self.prepare()
        self._searched: list[tuple[dict[str, torch.nn.Module | None], list[torch.nn.Module | None]]] = []
        self._within: list[DeclaredLayer] = []
        self._first_options = {option: vars(self)[option] for option in self.options if option in vars(self)}

    def _draw_parameters(self) -> None:
        """Give the declared parameters their first values, and plan how they move to the workers that use them."""
        parameters = dict(self.named_parameters())
        self._parameter_names = tuple(name for name in self.layouts if name in parameters)
        moved = self._parameter_names if self.brings_parameters else ()
        dtypes = [parameters[key].dtype for key in moved]
        self._transport = ParameterTransport([self.layouts[key] for key in moved], dtypes)
        drawn_from = checksum(torch.get_rng_state()) if self.layouts else 0
        self.reset_parameters()
        self.first_values = FirstValues(drawn_from, versions(self))

    def check_options(self) -> None:
        """Check the options, normalize the attributes and declare parameters. Exceptions are raised on all ranks.

        ``weight``, ``bias``, ``device`` and ``dtype`` are not attributes, but in ``self.passed``. Ranks without P_x run
        this, too: there ``self.grid.known`` is False, and the shape is empty.
        """

    def check_shape(self, fits: bool, rule: str) -> None:
        """Raise ValueError unless P_x has a shape that fits; ranks that do not know it pass."""
        if self.grid.known and not fits:
            raise ValueError(f"{type(self).__name__}: P_x has shape {list(self.grid.shape)}; {rule}")

    def declare_parameter(
        self,
        name: str,
        P: PartitionLike,
        shape: Sequence[int],
        axes: Sequence[int | None],
        *,
        exists: object = True,
        **options: object,
    ) -> None:
        """Declare a parameter of the constructor's dtype and device; unless it exists, the attribute is None."""
        if not exists:
            self.register_parameter(name, None)
            return
        defaults: dict[str, object] = {key: self.passed[key] for key in ("dtype", "device") if key in self.passed}
        super().declare_parameter(name, P, shape, axes, **(defaults | options))  # type: ignore[arg-type]

    def options_to_compare(self) -> dict[str, object]:
        """Further values that must be equal on all ranks, after :meth:`check_options`."""
        return {}

    def prepare(self) -> None:
        """Construct the operators that do not depend on tensors. Every rank calls it."""

    def calling_grids(self) -> list[Grid]:
        """The grids whose ranks call the layer together; by default all of its partitions."""
        return [P.grid for P in (getattr(self, name) for name in self.partitions) if P is not None]

    @property
    def all_ranks(self) -> Grid:
        """The ranks that call the layer together, in a row."""
        return self.grid.line(tuple(dict.fromkeys(rank for grid in self.calling_grids() for rank in grid.ranks)))

    # Parameters

    def parameters_in_use(self) -> Sequence[torch.Tensor]:
        """The blocks of the declared parameters that this worker uses, in order, moved from their owners."""
        return self._transport(self._declared_parameters())

    def parameters_by_name(self) -> dict[str, torch.Tensor]:
        """The result of :meth:`parameters_in_use`, by the declared names."""
        return dict(zip(self._parameter_names, self.parameters_in_use(), strict=True))

    def hint_at_parameters(self, error: RuntimeError) -> None:
        """Add a line to torch's error in ``compute`` if that has never called :meth:`parameters_in_use`."""
        if not (self._transport.is_identity or self._transport.was_called):
            names = ", ".join(f"self.{name}" for name in self._parameter_names)
            error.args = (
                f"{error}\n{type(self).__name__}: compute() has not called parameters_in_use(), which brings the "
                f"parameters to the workers that use them; {names} hold what this rank owns",
            )

    def start_parameters(self) -> Callable[[], Sequence[torch.Tensor]]:
        """Start moving the parameters, for computation meanwhile; the returned function waits for them.

        On one host, small parameters are moved at once, which takes less time than to wake another thread.
        """
        if self._transport.is_small and not (self.agreement and self.agreement.spans_hosts):
            used = self._transport(self._declared_parameters())
            return lambda: used
        return self._transport.start(self._declared_parameters())

    def use_parameters_in_place(self) -> None:
        """Use the declared parameters in place: a surrounding model moves them to its workers."""
        self._transport = ParameterTransport([])

    def buffers_in_use(self) -> list[torch.Tensor]:
        """The buffers of the layer."""
        return [buffer for buffer in self._buffers.values() if buffer is not None]

    def voted_parameters(self) -> list[torch.Tensor]:
        return self._declared_parameters()

    # Options

    def known_modules(self) -> Iterable[torch.nn.Module] | None:
        """This module and the modules within, if they never change; None if they may change."""
        return None

    def changed_options(self) -> str:
        texts = self.own_changed_options()
        if self._modules:
            texts += [f"within {text}" for layer in self._layers_within() for text in layer.own_changed_options()]
        return ", ".join(texts)

    def _layers_within(self) -> list[DeclaredLayer]:
        """The layers within, searched for again only if a module was replaced: the search takes long."""
        if any([*held.values()] != modules for held, modules in self._searched) or not self._searched:
            held_by_parts = [vars(part)["_modules"] for part in self.modules()]
            self._searched = [(held, [*held.values()]) for held in held_by_parts]
            self._within = [part for part in self.modules() if part is not self and isinstance(part, DeclaredLayer)]
        return self._within

    def own_changed_options(self) -> list[str]:
        first, values, texts = self._first_options, self.__dict__, []
        for name in [name for name, value in first.items() if values.get(name) is not value]:  # one microsecond
            was, now = (repr(comparable(options.get(name))) for options in (first, values))
            if was == now:
                first[name] = values[name]
            else:
                texts.append(f"{type(self).__name__}.{name}={now} (it was constructed with {was})")
        return texts

    def _declarations(self) -> list[tuple[object, ...]]:
        layouts = self.layouts.items()
        return [(name, layout.shape, layout.axes, layout.first_of, layout.kind) for name, layout in layouts]

    def _declared_parameters(self) -> list[torch.Tensor]:
        known = self._parameters
        # A parametrized parameter is a property; names of parameters of modules within have dots.
        return [known[name] if name in known else attrgetter(name)(self) for name in self._parameter_names]

    def extra_repr(self) -> str:
        shown = [f"{name}={self._shown(name)!r}" for name in self.options if name not in ("device", "dtype")]
        grids = [(name, getattr(self, name)) for name in self.partitions]
        return ", ".join([*shown, *(f"{name}={grid}" for name, grid in grids if grid is not None)])

    def _shown(self, name: str) -> object:
        if not hasattr(self, name):  # also the bias of a layer whose parameters have other names
            return self.passed[name]
        value = getattr(self, name)
        return value is not None if name == "bias" else value
