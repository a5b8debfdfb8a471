"""The base class of all layers: options, votes, set-up and calls."""

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
from distdl.nn.tie import ask_for_gradients, connect_to, differentiable, empty_result, recompute_together, reshape_empty
from distdl.operators.dispatch import problem_without_memory
from distdl.parameters.layout import current_kind, cut
from distdl.parameters.transport import ParameterTransport
from distdl.partition import Partition

Described = tuple[list[int], torch.dtype]
"""Shape and dtype of a worker's tensor."""

_is_compiling = torch.compiler.is_compiling
_is_transformed = torch._C._functorch.peek_interpreter_stack
_NO_VALUES = TypeError("meets a parameter or buffer that has no values: sparse, fake, or on the meta device")
_TRANSFORMED = TypeError("meets parameters within the transforms of torch.func; these go through primitives only")
_FUNCTIONAL = TypeError("is wrapped for functionalization; it has to be a plain torch.Tensor")
_MISSING = TypeError("is of type NoneType; it has to be a torch.Tensor")


@functools.cache  # reading a signature takes tens of microseconds
def _arguments_of(compute: Callable[..., object]) -> list[str]:
    return list(inspect.signature(compute).parameters)


def _is_without_values(tensor: torch.Tensor | None) -> bool:
    if tensor is None:
        return False
    return tensor.is_meta or tensor.layout is not torch.strided or problem_without_memory(tensor) is not None


def _is_functional(x: object) -> bool:
    return isinstance(x, torch.Tensor) and torch._is_functional_tensor(x)


def _meets_transform(parameters: Sequence[torch.Tensor], tensors: Sequence[object]) -> bool:
    """Whether parameters are wrapped, or tensors by functionalize. The vote refuses other wrapped tensors."""
    return any(map(_is_functional, tensors)) or any(map(is_functorch_wrapped_tensor, parameters))


def _not_defined(self: Layer, *args: object) -> object:
    raise NotImplementedError(f"{type(self).__name__} has no compute()")


class Layer(FromSequential):
    """A layer over partitions: a derived class has options, :meth:`set_up` and :meth:`compute`.

    The signature of the constructor declares the options; its body is ``super().__init__(locals())``. Arguments whose
    names begin with ``P_`` are partitions. All ranks compare partitions and options, and each becomes an attribute;
    ``self.grid`` describes P_x. Then :meth:`check_options` and :meth:`prepare` run.

    Before each call the layer's ranks take one vote on shapes, dtypes, devices, autocast, and required gradients of its
    tensors. If anything changed on any rank, :meth:`set_up` runs on all of them. Operators in :meth:`compute` take no
    further vote in the forward pass. An error in a tensor of any rank is raised on all ranks.

    Attributes:
        key_in_graphs: the number of the layer in compiled programs.
        tensors: names of the arguments of :meth:`compute` that are tensors; they come first.
        optional: the names among them that may be None.
        options: the names of the options, in order.
        brings_parameters: whether :meth:`parameters_in_use` moves parameters to the workers that use them.
    """

    _distdl_sets_up = False  # forward() sets up
    tensors: ClassVar[tuple[str, ...]] = ("input",)
    optional: ClassVar[tuple[str, ...]] = ()
    brings_parameters: ClassVar[bool] = True
    P_x: Partition
    random_key: int
    key_in_graphs: int

    def __init_subclass__(cls) -> None:
        """Let arguments that do not match the constructor raise on all ranks."""
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = constructor(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, arguments: Mapping[str, object]) -> None:
        super().__init__()
        name = type(self).__name__
        partitions, options = split_arguments(arguments)
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
        moved = self._parameter_names if self.brings_parameters else ()
        dtypes = [parameters[key].dtype for key in moved]
        self._transport = ParameterTransport([self.layouts[key] for key in moved], dtypes)
        state = random_state(self)
        self.reset_parameters()
        self.first_values = FirstValues(state, versions(self))
        self.prepare()
        self._first_options = {option: vars(self)[option] for option in self.options if option in vars(self)}
        self._distdl_agreement = agreement_among(name, self.agreeing(), self.tensors)
        if self._distdl_agreement is not None:
            for key in self._parameter_names:
                layout = self.layouts[key]
                self._distdl_agreement.expect(key, list(layout.local_shape), not layout.grid.active)
        self._distdl_all_ranks = self.all_ranks
        result = getattr(self, "P_y", None) or self.P_x
        self._dims_of_nothing = 0 if result.active else self.result_dims(result.dim)
        self.key_in_graphs = new_key(self)

    # Methods for derived classes

    def check_options(self) -> None:
        """Check the options, normalize the attributes and declare parameters. Exceptions are raised on all ranks.

        ``weight``, ``bias``, ``device`` and ``dtype`` are not attributes, but in ``self.given``. Ranks without P_x run
        this, too: there ``self.grid.known`` is False, and the shape is empty.
        """

    def declare_parameter(
        self, name: str, P: PartitionLike, shape: Sequence[int], axes: Sequence[int | None], **options: object
    ) -> None:
        defaults: dict[str, object] = {key: self.given[key] for key in ("dtype", "device") if key in self.given}
        super().declare_parameter(name, P, shape, axes, **(defaults | options))  # type: ignore[arg-type]

    def further_compared(self) -> dict[str, object]:
        """Further values that must be equal on all ranks, after :meth:`check_options`."""
        return {}

    def prepare(self) -> None:
        """Construct the operators that do not depend on tensors. Every rank calls it."""

    def agreeing(self) -> list[Grid]:
        """The grids whose ranks call the layer together; by default all of its partitions."""
        return [P.grid for P in (getattr(self, name) for name in self.partitions) if P is not None]

    def compared_tensors(self, inputs: Sequence[object]) -> Sequence[object]:
        """The tensors of a call for the vote; an exception in place of a tensor describes its error."""
        return inputs

    def compared_each_call(self) -> str:
        """Text that must be equal on all ranks in each call; if it changes, :meth:`set_up` runs.

        Options, also of layers within, are always compared. A layer that depends on its mode includes it here.
        """
        return ""

    def is_random(self) -> bool:
        """Whether the next call draws random numbers; equal on all ranks.

        Such a call takes a number from torch's default generator, on every rank. ``self.random_key`` is the number of
        worker 0 of P_x, on all ranks; activation checkpointing rewinds the generators, and repeats it. See
        ``distdl.nn.masks``.
        """
        return False

    def set_up(self) -> None:
        """Prepare for tensors of this structure, which all ranks of the layer know. Exceptions are raised on all ranks.

        Ranks outside of the layer's partitions do not run it. ``self.others`` are the arguments of :meth:`compute`
        after the tensors, equal on all ranks.
        """

    compute: Callable[..., object] = _not_defined
    """The computation of the layer. Every rank runs it, and applies the same operators in the same order.

    Ranks without work run it, too, and return :meth:`without_part`.
    """

    def result_dims(self, dims: int) -> int:
        """The number of dimensions of the result; ``dims`` is that number of P_y, or of P_x without P_y.

        Ranks without a part of the result return as many dimensions, so that ``torch.nn.Flatten`` works on all ranks.
        """
        return dims

    def ask_for_gradients(self, result: object) -> None:
        """Let results require gradients on ranks whose own tensors do not."""
        ask_for_gradients(result)

    def without_part(self, input: torch.Tensor) -> torch.Tensor:
        """The result on a rank without work: its input, connected to the parameters.

        The rank takes part in the communication of the other ranks' backward passes.
        """
        parameters = self.parameters_in_use()
        return connect_to(input, *parameters) if parameters else empty_result(input)

    def check_balanced(self, dim: int, extent: int, name: str) -> None:
        """Raise unless an input is in balanced blocks along a dimension, as parameters are. For :meth:`set_up`.

        Args:
            dim: the dimension of the input.
            extent: its extent in the whole input.
            name: the option with this extent, for the message.

        Raises:
            ValueError: on all ranks. Otherwise torch might broadcast a block of 1 element.
        """
        sizes = self.blocks(self.grid)[dim]
        balanced = [stop - start for start, stop in cut(extent, len(sizes))]
        if sizes != balanced:
            raise ValueError(
                f"{type(self).__name__}: the input comes in blocks of {sizes} in dimension {dim}; these must be the "
                f"balanced blocks of {name}={extent}, {balanced}"
            )

    def structure(self, P: PartitionLike, tensor: int = 0) -> list[Described]:
        """(shape, dtype) of a tensor of the call on each worker of a partition, as voted."""
        agreement = self._distdl_agreement
        described = [] if agreement is None else agreement.structure(tensor, list(grid_of(P).ranks))
        return [worker for worker in described if worker is not None]

    def blocks(self, P: PartitionLike, tensor: int = 0, name: str = "P_x") -> list[list[int]]:
        """The sizes of a tensor's blocks by dimension, as voted. Raises ValueError if they do not match."""
        if self._distdl_agreement is None:
            return []
        grid = grid_of(P)
        return self._distdl_agreement.blocks(tensor, name, list(grid.shape), list(grid.ranks))

    @property
    def all_ranks(self) -> Grid:
        """The ranks that call the layer together, in a row."""
        return self.grid.line(tuple(dict.fromkeys(rank for grid in self.agreeing() for rank in grid.ranks)))

    @property
    def agreement(self) -> _core.LayerAgreement | None:
        """The vote of the ranks on a call; None on a rank outside of all partitions."""
        return self._distdl_agreement

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast, as voted; None if it is off."""
        return None if self._distdl_agreement is None else self._distdl_agreement.autocast

    @property
    def is_differentiated(self) -> bool:
        """Whether gradients are recorded, and a tensor or parameter of any rank requires them, as voted."""
        agreement = self._distdl_agreement
        return agreement is not None and agreement.requires_grad and torch.is_grad_enabled()

    @property
    def has_tangent(self) -> bool:
        """Whether a tensor or parameter of any rank has forward derivatives, as voted.

        Autograd functions without a forward-mode rule raise, on these ranks only.
        """
        return self._distdl_agreement is not None and self._distdl_agreement.has_tangent

    def parameters_in_use(self) -> Sequence[torch.Tensor]:
        """The blocks of the declared parameters that this worker uses, in order, moved from their owners."""
        return self._transport(self._declared_parameters())

    def parameters_by_name(self) -> dict[str, torch.Tensor]:
        """The result of :meth:`parameters_in_use`, by the declared names."""
        return dict(zip(self._parameter_names, self.parameters_in_use(), strict=True))

    def start_parameters(self) -> Callable[[], Sequence[torch.Tensor]]:
        """Start moving the parameters, for computation meanwhile; the returned function waits for them."""
        return self._transport.start(self._declared_parameters())

    def let_parameters_stay(self) -> None:
        """Use the declared parameters in place: a surrounding model moves them to its workers."""
        self._transport = ParameterTransport([])

    # The call

    def forward(self, *args: object, **kwargs: object) -> object:
        """Vote, set up if anything changed, and compute. Collective over the layer's ranks."""
        if _is_compiling():
            return call_in_graph(self.key_in_graphs, list(self.parameters()), args, kwargs)
        if kwargs or may_override(args):
            return overridden(self.call, self._distdl_refuse, args, kwargs)
        return self.call(*args)

    def call(self, *args: object, **kwargs: object) -> object:
        """Do the work of :meth:`forward`, also while a compiler traces."""
        if kwargs or len(args) != len(self.tensors):
            args = self._bound(args, kwargs)
        agreement = self._distdl_agreement
        if agreement is None or not agreement.active:
            if self.is_random():
                draw_key()  # to keep the ranks' generators equal
            return reshape_empty(self.compute(*args), self._dims_of_nothing)
        try:
            self._distdl_forward_pre_hook(self, args)
            if self.first_values is not None:
                notice(self, args)
            if self.is_differentiated:
                args = differentiable(args)
            result = self.compute(*args)
            if self._dims_of_nothing:
                result = reshape_empty(result, self._dims_of_nothing)
            if agreement.sizes_are_in_question:
                check_sizes(self, result)
            if self.is_differentiated:
                self.ask_for_gradients(result)
            return recompute_together(result)
        finally:
            agreement.leave()

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.key_in_graphs = new_key(self)  # a copy needs another key

    def _bound(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        problem = misfit(self.compute, args, kwargs)
        if problem is not None:
            self._distdl_refuse(TypeError(f"cannot be passed to forward(): {problem}"))
            raise problem
        bound = inspect.signature(self.compute).bind(*args, **kwargs)
        if bound.kwargs:  # optional tensors were left out
            bound.apply_defaults()
        return bound.args

    def _distdl_look_at(self, input: tuple[object, ...]) -> bool:
        """Vote: whether the structure of any tensor of the call changed, on any rank, since the last call."""
        count, tensors = len(self.tensors), list[object]()
        try:  # an exception of any rank is raised on all of them
            compared = self._shown_others(input[count:]) if len(input) > count else ""
            tensors = [
                _MISSING if tensor is None and name not in self.optional else (problem_without_memory(tensor) or tensor)
                for name, tensor in zip(self.tensors, self.compared_tensors(input[:count]), strict=False)
            ]
            for text in (self._changed_options(), self._described_buffers(), self.compared_each_call()):
                compared = f"{compared}, {text}" if compared and text else compared or text
            if self._modules or self._forward_pre_hooks:
                for problem in problem_of_parametrizations(self, self._known_modules()):
                    raise ValueError(problem)
            parameters, is_random = self._agreed_parameters(), self.is_random()
            if _is_transformed() is not None and _meets_transform(parameters, tensors):
                compared, tensors, parameters, is_random = "", [_TRANSFORMED], [], False
            elif any(map(_is_functional, tensors)):
                compared, tensors, parameters, is_random = "", [_FUNCTIONAL], [], False
            elif any(map(_is_without_values, [*parameters, *self._buffers_in_use()])):
                compared, tensors, parameters, is_random = "", [_NO_VALUES], [], False
        except Exception as error:  # of an argument, or of an option with a bad value
            if not any(isinstance(tensor, Exception) for tensor in tensors):  # the first error counts
                deleted = isinstance(error, AttributeError)  # a parameter, perhaps deleted by a parametrization
                problem = "meets a parameter that is not there" if deleted else "cannot be passed on"
                tensors = [ValueError(f"{problem}: {shown(error, str) or type(error).__name__}")]
            compared, parameters, is_random = "", [], False
        if not is_random:
            return self._distdl_agree(tensors, parameters, compared)
        key = draw_key()
        changed = self._distdl_agree(tensors, parameters, compared, key if self.grid.rank == 0 else 0)
        assert self._distdl_agreement is not None
        self.random_key = self._distdl_agreement.broadcast
        return changed

    def _known_modules(self) -> Iterable[torch.nn.Module] | None:
        """This module and the modules within, if they never change; None if they may change."""
        return None

    def _described_buffers(self) -> str:
        """A text for the vote: a rank may have converted the layer, or deleted a buffer."""
        dtypes = [str(buffer.dtype) for buffer in self._buffers_in_use() if buffer.is_floating_point()]
        return f"{len(self._buffers)} own buffers, of [{', '.join(dtypes)}]" if self._buffers or dtypes else ""

    def _buffers_in_use(self) -> list[torch.Tensor]:
        return [buffer for buffer in self._buffers.values() if buffer is not None]

    def _changed_options(self) -> str:
        texts = self._own_changed_options()
        if self._modules:
            within = [layer for layer in self.modules() if layer is not self and isinstance(layer, Layer)]
            texts += [f"within {text}" for layer in within for text in layer._own_changed_options()]
        return ", ".join(texts)

    def _own_changed_options(self) -> list[str]:
        first, values, texts = self._first_options, self.__dict__, []
        for name in [name for name, value in first.items() if values.get(name) is not value]:  # one microsecond
            was, now = (repr(comparable(options.get(name))) for options in (first, values))
            if was == now:
                first[name] = values[name]
            else:
                texts.append(f"{type(self).__name__}.{name}={now} (it was constructed with {was})")
        return texts

    def _shown_others(self, others: Sequence[object]) -> str:
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
        # A parametrized parameter is a property; names of parameters of modules within have dots.
        return [known[name] if name in known else attrgetter(name)(self) for name in self._parameter_names]

    def _agreed_parameters(self) -> list[torch.Tensor]:
        return self._declared_parameters()

    def extra_repr(self) -> str:
        shown = [f"{name}={self._shown(name)!r}" for name in self.options if name not in ("device", "dtype")]
        grids = [(name, getattr(self, name)) for name in self.partitions]
        return ", ".join([*shown, *(f"{name}={grid}" for name, grid in grids if grid is not None)])

    def _shown(self, name: str) -> object:
        if name == "bias":
            return getattr(self, "bias", None) is not None
        return getattr(self, name) if hasattr(self, name) else self.given[name]
