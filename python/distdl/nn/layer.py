"""The contract of every layer: what it has to do beyond its own arithmetic is done here, once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import ClassVar

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from distdl import _core
from distdl.collective.comparison import misfit, shown
from distdl.collective.construction import PartitionLike, constructing, constructor, grid_of
from distdl.collective.grid import Grid
from distdl.nn.compiled import call_in_graph, check_sizes, new_key
from distdl.nn.from_sequential import FromSequential
from distdl.nn.masks import draw_key
from distdl.nn.module import agreement_among
from distdl.nn.noticed import FirstValues, notice, random_state, versions
from distdl.nn.options import NOT_ATTRIBUTES, comparable, kind_of, split_arguments
from distdl.nn.parametrized import problem_of_parametrizations
from distdl.nn.subclasses import may_override, overridden
from distdl.nn.tie import ask_for_gradients, differentiable, nothing_from, nothing_of, recomputed, tied
from distdl.operators.dispatch import problem_without_memory
from distdl.parameters.layout import current_kind, cut
from distdl.parameters.transport import ParameterTransport
from distdl.partition import Partition

Described = tuple[list[int], torch.dtype]
"""Shape and dtype of a worker's tensor."""

_is_compiling = torch.compiler.is_compiling
_is_transformed = torch._C._functorch.peek_interpreter_stack
_WITHOUT_VALUES = TypeError("meets a parameter or buffer that has no values: sparse, fake, or on the meta device")
_TRANSFORMED = TypeError("meets parameters within the transforms of torch.func; these go through primitives only")
_FUNCTIONAL = TypeError("is wrapped for functionalization; it has to be a plain torch.Tensor")
_MISSING = TypeError("is of type NoneType; it has to be a torch.Tensor")


@functools.cache  # reading a signature takes tens of microseconds
def _arguments_of(compute: Callable[..., object]) -> list[str]:
    return list(inspect.signature(compute).parameters)


def _is_without_values(one: torch.Tensor | None) -> bool:
    if one is None:
        return False
    return one.is_meta or one.layout is not torch.strided or problem_without_memory(one) is not None


def _is_functional(one: object) -> bool:
    return isinstance(one, torch.Tensor) and torch._is_functional_tensor(one)


def _meets_transform(parameters: Sequence[torch.Tensor], tensors: Sequence[object]) -> bool:
    """Whether parameters are wrapped, or tensors by functionalize. Other wrapped tensors are refused in the vote."""
    return any(map(_is_functional, tensors)) or any(map(is_functorch_wrapped_tensor, parameters))


def _not_defined(self: Layer, *args: object) -> object:
    raise NotImplementedError(f"{type(self).__name__} has no compute()")


class Layer(FromSequential):
    """A layer over partitions, as its author sees it: options, :meth:`set_up` and :meth:`compute`.

    The signature of the constructor spells the options, once; its body is ``super().__init__(locals())``. Arguments
    whose names begin with ``P_`` are partitions. All ranks compare partitions and options, and each becomes an
    attribute. ``self.grid`` describes P_x. Then :meth:`check_options` and :meth:`prepare` run.

    Before each call the layer's ranks agree in one vote on the tensors of the call: shapes, dtypes, devices, autocast,
    and what asks for gradients. If anything changed on any rank, :meth:`set_up` runs on all of them. The operators
    that :meth:`compute` calls hold no vote of their own in the forward pass. What is wrong with a tensor on one rank is
    raised on all of them.

    Attributes:
        key_in_graphs: the number by which compiled programs know the layer.
        tensors: names of the arguments of :meth:`compute` that are tensors; they come first.
        optional: those of them that may be None.
        options: the names of the options, in order.
        brings_parameters: whether :meth:`parameters_in_use` brings parameters to where they are used.
    """

    _distdl_sets_up = False  # forward() does
    tensors: ClassVar[tuple[str, ...]] = ("input",)
    optional: ClassVar[tuple[str, ...]] = ()
    brings_parameters: ClassVar[bool] = True
    P_x: Partition
    random_key: int
    key_in_graphs: int

    def __init_subclass__(cls) -> None:
        """Have arguments that do not fit the constructor raise on all ranks."""
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = constructor(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, given: Mapping[str, object]) -> None:
        super().__init__()
        name = type(self).__name__
        partitions, options = split_arguments(given)
        if taken := [key for key in options if hasattr(Layer, key)]:
            raise TypeError(f"{name}: an option must not be called {taken[0]!r}, which is an attribute of every layer")
        self.options = tuple(options)
        self.partitions, self.given = tuple(partitions), options
        known = {P: value for P, value in partitions.items() if value is not None or P == "P_x"}
        compared = {key: comparable(value) for key, value in options.items()}
        compared |= {"device": kind_of(options["device"])} if "device" in options else {}
        if current_kind() != "owner":
            compared["parameter_layout"] = current_kind()
        with constructing(name, known, compared) as grids:
            self.__dict__.update(dict.fromkeys(partitions))
            for (P, value), grid in zip(known.items(), grids, strict=True):
                kind = type(value) if isinstance(value, Partition) else Partition
                self.__dict__[P] = kind.of_grid(grid, like=value)
            self.grid = grids[0]
            self.__dict__.update({key: value for key, value in options.items() if key not in NOT_ATTRIBUTES})
            self.check_options()
            compared.update(self.further_compared())
        with constructing(name, known, {"declared": self._declarations()}):
            pass
        parameters = dict(self.named_parameters())
        self._parameter_names = tuple(name for name in self.layouts if name in parameters)
        brought = self._parameter_names if self.brings_parameters else ()
        dtypes = [parameters[one].dtype for one in brought]
        self._transport = ParameterTransport([self.layouts[one] for one in brought], dtypes)
        before = random_state(self)
        self.reset_parameters()
        self.first_values = FirstValues(before, versions(self))
        self.prepare()
        self._first_options = {option: vars(self)[option] for option in self.options if option in vars(self)}
        self._distdl_agreement = agreement_among(name, self.agreeing(), self.tensors)
        if self._distdl_agreement is not None:
            for one in self._parameter_names:
                layout = self.layouts[one]
                self._distdl_agreement.expect(one, list(layout.local_shape), not layout.grid.active)
        self._distdl_everyone = self.everyone
        result = getattr(self, "P_y", None) or self.P_x
        self._dims_of_nothing = 0 if result.active else self.result_dims(result.dim)
        self.key_in_graphs = new_key(self)

    # For the layer's author

    def check_options(self) -> None:
        """Check the options, normalize the attributes and declare parameters. What it raises is raised on all ranks.

        ``weight``, ``bias``, ``device`` and ``dtype`` are options that are no attributes: they are in ``self.given``.
        A rank that knows nothing of P_x runs this, too: there ``self.grid.known`` is False, and the shape is empty.
        """

    def declare_parameter(
        self, name: str, P: PartitionLike, shape: Sequence[int], axes: Sequence[int | None], **more: object
    ) -> None:
        """Call :meth:`Module.declare_parameter` with the options ``dtype`` and ``device``."""
        own: dict[str, object] = {key: self.given[key] for key in ("dtype", "device") if key in self.given}
        super().declare_parameter(name, P, shape, axes, **(own | more))  # type: ignore[arg-type]

    def further_compared(self) -> dict[str, object]:
        """Further values that have to be equal on all ranks, after :meth:`check_options`."""
        return {}

    def prepare(self) -> None:
        """Construct the operators that do not depend on the tensors of a call. Every rank does."""

    def agreeing(self) -> list[Grid]:
        """The grids whose ranks call the layer together; by default all of its partitions."""
        return [P.grid for P in (getattr(self, name) for name in self.partitions) if P is not None]

    def looked_at(self, inputs: Sequence[object]) -> Sequence[object]:
        """The tensors of a call for the agreement; an exception in place of a tensor says what is wrong with it."""
        return inputs

    def compared_each_call(self) -> str:
        """Text that has to be equal on all ranks in each call; where it changes, :meth:`set_up` runs.

        The options are compared in any case, since they may be assigned between calls, and so are those of the layers
        within. The mode is not, unless a layer that depends on it says so here.
        """
        return ""

    def is_random(self) -> bool:
        """Whether the next call draws random numbers; the same on all ranks.

        Such a call takes one number from torch's default generator, on every rank. ``self.random_key`` is that of
        worker 0 of P_x: the same on all ranks, though their generators may differ, and the same again in activation
        checkpointing, which rewinds the generators. See ``distdl.nn.masks``.
        """
        return False

    def set_up(self) -> None:
        """Prepare for tensors of this structure, which all ranks of the layer know; what it raises, all of them raise.

        Ranks outside of the layer's partitions do not run it. ``self.others`` are the arguments of :meth:`compute`
        behind the tensors, which are equal on all ranks.
        """

    compute: Callable[..., object] = _not_defined
    """What the layer does. Every rank runs it, and applies the same operators in the same order.

    Ranks that compute nothing run it as well, and return :meth:`without_part`.
    """

    def result_dims(self, dims: int) -> int:
        """The number of dimensions of the result, for one of P_y, or of P_x where there is no P_y.

        Ranks that have no part of the result return it with as many, so that ``torch.nn.Flatten`` works on all ranks.
        """
        return dims

    def ask_for_gradients(self, result: object) -> None:
        """Let results require gradients on ranks on which nothing that they passed does."""
        ask_for_gradients(result)

    def without_part(self, input: torch.Tensor) -> torch.Tensor:
        """The result on a rank that computes nothing: its input, connected with the parameters.

        The rank has no part of the result, but it has to take part in the communication of the others' backward passes.
        """
        parameters = self.parameters_in_use()
        return tied(input, *parameters) if parameters else nothing_from(input)

    def check_balanced(self, dim: int, extent: int, name: str) -> None:
        """Refuse an input that is not in balanced blocks along a dimension, as parameters are. For :meth:`set_up`.

        Args:
            dim: of the input.
            extent: of the whole input there.
            name: of the option that says so, for the message.

        Raises:
            ValueError: on all ranks. Without it, torch may broadcast a block of 1 element.
        """
        sizes = self.blocks(self.grid)[dim]
        balanced = [stop - start for start, stop in cut(extent, len(sizes))]
        if sizes != balanced:
            raise ValueError(
                f"{type(self).__name__}: the input comes in blocks of {sizes} in dimension {dim}; these must be the "
                f"balanced blocks of {name}={extent}, {balanced}"
            )

    def structure(self, P: PartitionLike, tensor: int = 0) -> list[Described]:
        """(shape, dtype) of a tensor of the call on each worker of a partition, as agreed on."""
        agreement = self._distdl_agreement
        everyone = [] if agreement is None else agreement.structure(tensor, list(grid_of(P).ranks))
        return [one for one in everyone if one is not None]

    def blocks(self, P: PartitionLike, tensor: int = 0, name: str = "P_x") -> list[list[int]]:
        """The sizes of a tensor's blocks by dimension, as agreed on. Raises ValueError where they do not fit."""
        if self._distdl_agreement is None:
            return []
        grid = grid_of(P)
        return self._distdl_agreement.blocks(tensor, name, list(grid.shape), list(grid.ranks))

    @property
    def everyone(self) -> Grid:
        """The ranks that call the layer together, in a row."""
        return self.grid.line(tuple(dict.fromkeys(rank for grid in self.agreeing() for rank in grid.ranks)))

    @property
    def agreement(self) -> _core.LayerAgreement | None:
        """How the ranks agree on a call; None on a rank that knows none of the partitions."""
        return self._distdl_agreement

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast, as agreed on; None where it is off."""
        return None if self._distdl_agreement is None else self._distdl_agreement.autocast

    @property
    def is_differentiated(self) -> bool:
        """Whether gradients are recorded and tensors or parameters of any rank require them, as agreed on."""
        agreement = self._distdl_agreement
        return agreement is not None and agreement.requires_grad and torch.is_grad_enabled()

    @property
    def has_tangent(self) -> bool:
        """Whether tensors or parameters of any rank have forward derivatives, as agreed on.

        Autograd functions without a rule for them raise, on these ranks alone.
        """
        return self._distdl_agreement is not None and self._distdl_agreement.has_tangent

    def parameters_in_use(self) -> Sequence[torch.Tensor]:
        """The blocks of the declared parameters that this worker uses, in order, from where they live."""
        return self._transport(self._declared_parameters())

    def parameters_by_name(self) -> dict[str, torch.Tensor]:
        """The result of :meth:`parameters_in_use` by the names with which the parameters were declared."""
        return dict(zip(self._parameter_names, self.parameters_in_use(), strict=True))

    def start_parameters(self) -> Callable[[], Sequence[torch.Tensor]]:
        """Let the parameters travel while something is computed; what it returns waits for them."""
        return self._transport.start(self._declared_parameters())

    def let_parameters_stay(self) -> None:
        """Use the declared parameters where they are: a model around the layer brings them to its workers."""
        self._transport = ParameterTransport([])

    # How it is kept

    def forward(self, *args: object, **kwargs: object) -> object:
        """Agree on the call, set up where something changed, and compute. Collective over the layer's ranks."""
        if _is_compiling():
            return call_in_graph(self.key_in_graphs, list(self.parameters()), args, kwargs)
        if kwargs or may_override(args):
            return overridden(self.call, self._distdl_refuse, args, kwargs)
        return self.call(*args)

    def call(self, *args: object, **kwargs: object) -> object:
        """Do the work of :meth:`forward`, also where a compiler traces."""
        if kwargs or len(args) != len(self.tensors):
            args = self._bound(args, kwargs)
        agreement = self._distdl_agreement
        if agreement is None or not agreement.active:
            if self.is_random():
                draw_key()  # so that the ranks' generators stay in step
            return nothing_of(self.compute(*args), self._dims_of_nothing)
        try:
            self._distdl_forward_pre_hook(self, args)
            if self.first_values is not None:
                notice(self, args)
            if self.is_differentiated:
                args = differentiable(args)
            result = self.compute(*args)
            if self._dims_of_nothing:
                result = nothing_of(result, self._dims_of_nothing)
            if agreement.sizes_are_in_question:
                check_sizes(self, result)
            if self.is_differentiated:
                self.ask_for_gradients(result)
            return recomputed(result)
        finally:
            agreement.leave()

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.key_in_graphs = new_key(self)  # a copy is another layer

    def _bound(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        problem = misfit(self.compute, args, kwargs)
        if problem is not None:
            self._distdl_refuse(TypeError(f"cannot be passed to forward(): {problem}"))
            raise problem
        bound = inspect.signature(self.compute).bind(*args, **kwargs)
        if bound.kwargs:  # there is a gap before them
            bound.apply_defaults()
        return bound.args

    def _distdl_look_at(self, input: tuple[object, ...]) -> bool:
        """Whether the structure of any tensor of the call changed, on any rank, since the last call. The vote."""
        count, tensors = len(self.tensors), list[object]()
        try:  # whatever raises here on one rank is raised on all of them
            own = self._shown_others(input[count:]) if len(input) > count else ""
            tensors = [
                _MISSING if tensor is None and name not in self.optional else (problem_without_memory(tensor) or tensor)
                for name, tensor in zip(self.tensors, self.looked_at(input[:count]), strict=False)
            ]
            for more in (self._changed_options(), self._described_buffers(), self.compared_each_call()):
                own = f"{own}, {more}" if own and more else own or more
            if self._modules or self._forward_pre_hooks:
                for problem in problem_of_parametrizations(self, self._known_modules()):
                    raise ValueError(problem)
            parameters, is_random = self._agreed_parameters(), self.is_random()
            if _is_transformed() is not None and _meets_transform(parameters, tensors):
                own, tensors, parameters, is_random = "", [_TRANSFORMED], [], False
            elif any(map(_is_functional, tensors)):
                own, tensors, parameters, is_random = "", [_FUNCTIONAL], [], False
            elif any(map(_is_without_values, [*parameters, *self._buffers_in_use()])):
                own, tensors, parameters, is_random = "", [_WITHOUT_VALUES], [], False
        except Exception as error:  # of an argument, or of an option with a value that it cannot have
            if not any(isinstance(one, Exception) for one in tensors):  # which is what is wrong in the first place
                deleted = isinstance(error, AttributeError)  # a parameter, perhaps by a parametrization
                problem = "meets a parameter that is not there" if deleted else "cannot be passed on"
                tensors = [ValueError(f"{problem}: {shown(error, str) or type(error).__name__}")]
            own, parameters, is_random = "", [], False
        if not is_random:
            return self._distdl_agree(tensors, parameters, own)
        key = draw_key()
        changed = self._distdl_agree(tensors, parameters, own, key if self.grid.rank == 0 else 0)
        assert self._distdl_agreement is not None
        self.random_key = self._distdl_agreement.told
        return changed

    def _known_modules(self) -> Iterable[torch.nn.Module] | None:
        """This module and those within, where they were looked for once; None if they may change."""
        return None

    def _described_buffers(self) -> str:
        """For the ranks to compare: one of them may have converted the layer, or deleted a buffer, also one of None."""
        dtypes = [str(one.dtype) for one in self._buffers_in_use() if one.is_floating_point()]
        return f"{len(self._buffers)} own buffers, of [{', '.join(dtypes)}]" if self._buffers or dtypes else ""

    def _buffers_in_use(self) -> list[torch.Tensor]:
        return [one for one in self._buffers.values() if one is not None]

    def _changed_options(self) -> str:
        """The options with other values than after construction, here and in the layers within; usually none."""
        found = self._own_changed_options()
        if self._modules:
            within = [one for one in self.modules() if one is not self and isinstance(one, Layer)]
            found += [f"within {text}" for one in within for text in one._own_changed_options()]
        return ", ".join(found)

    def _own_changed_options(self) -> list[str]:
        first, own, found = self._first_options, self.__dict__, []
        for name in [name for name, value in first.items() if own.get(name) is not value]:  # a microsecond for all
            was, now = (repr(comparable(options.get(name))) for options in (first, own))
            if was == now:
                first[name] = own[name]
            else:
                found.append(f"{type(self).__name__}.{name}={now} (it was constructed with {was})")
        return found

    def _shown_others(self, others: Sequence[object]) -> str:
        """The arguments behind the tensors, by name."""
        names = _arguments_of(type(self).compute)[1 + len(self.tensors) :]
        return ", ".join(f"{name}={shown(value)}" for name, value in zip(names, others, strict=False))

    def _distdl_refuse(self, problem: Exception) -> None:
        if self._distdl_agreement is not None:
            self._distdl_agree([problem], self._agreed_parameters())

    def _distdl_module_setup(self, input: tuple[object, ...]) -> None:
        self.others = input[len(self.tensors) :]
        self.set_up()

    def _declarations(self) -> list[tuple[object, ...]]:
        layouts = self.layouts.items()
        return [(name, layout.shape, layout.axes, layout.first_of, layout.kind) for name, layout in layouts]

    def _declared_parameters(self) -> list[torch.Tensor]:
        known = self._parameters
        # A parametrized parameter has become a property; one of a module within is named with a dot.
        return [known[name] if name in known else attrgetter(name)(self) for name in self._parameter_names]

    def _agreed_parameters(self) -> list[torch.Tensor]:
        """Tensors that ranks agree on beside those of a call, beginning with the declared parameters."""
        return self._declared_parameters()

    def extra_repr(self) -> str:
        """Options and partitions."""
        shown = [f"{name}={self._shown(name)!r}" for name in self.options if name not in ("device", "dtype")]
        grids = [(name, getattr(self, name)) for name in self.partitions]
        return ", ".join([*shown, *(f"{name}={grid}" for name, grid in grids if grid is not None)])

    def _shown(self, name: str) -> object:
        if name == "bias":
            return getattr(self, "bias", None) is not None
        return getattr(self, name) if hasattr(self, name) else self.given[name]
