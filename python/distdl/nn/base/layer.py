"""The base class of all layers: what a call does, step by step."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

import torch

from distdl import _core
from distdl.modules.first_values import first_call_checks
from distdl.modules.graph import connect_to, differentiable, empty_result, recompute_together, reshape_empty
from distdl.modules.parametrized import problem_of_parametrizations
from distdl.nn.base.compile import call_in_graph, check_sizes, new_key
from distdl.nn.base.declared_layer import DeclaredLayer
from distdl.nn.base.option_types import FirstPartition, common_options
from distdl.nn.base.random_numbers import draw_key
from distdl.nn.base.voted_layer import VotedLayer
from distdl.operators.dispatch import Applied
from distdl.partitions.comparison import shown_by
from distdl.partitions.construction import constructor
from distdl.texts import safe_text
from distdl.torch_compat.autograd import saved_tensors_hooks
from distdl.torch_compat.modes import is_compiling, unseen_by_modes
from distdl.torch_compat.subclasses import may_override, overridden


@functools.cache  # reading a signature takes tens of microseconds
def _arguments_of(compute: Callable[..., object]) -> list[str]:
    return list(inspect.signature(compute).parameters)


def _not_defined(self: Layer, *args: object) -> object:
    raise NotImplementedError(f"{type(self).__name__} has no compute()")


@common_options
class Layer(VotedLayer):
    """A layer over partitions: a derived class has options, :meth:`set_up` and :meth:`compute`.

    The signature of the constructor declares the options; its body is ``super().__init__(locals())``. The decorator
    ``with_options`` makes it from annotated attributes. Arguments whose names begin with ``P_`` are partitions. All
    ranks compare partitions and options, and each becomes an attribute, after the checks that its annotation says;
    ``self.grid`` describes P_x. Then :meth:`check_options` and :meth:`prepare` run.

    Before each call the layer's ranks take one vote on shapes, dtypes, devices, autocast, and required gradients of its
    tensors. If anything changed on any rank, :meth:`set_up` runs on all of them. Operators in :meth:`compute` take no
    further vote in the forward pass. An error in a tensor of any rank is raised on all ranks.

    Attributes:
        optional: the names among ``tensors`` that may be None.
    """

    optional: ClassVar[tuple[str, ...]] = ()
    P_x: FirstPartition

    def __init_subclass__(cls) -> None:
        """Let arguments that do not match the constructor raise on all ranks."""
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = constructor(cls.__init__)  # type: ignore[method-assign]
        for hook in ("_distdl_input_changed", "_distdl_forward_pre_hook"):
            if hook in vars(cls):
                raise TypeError(f"{cls.__name__}: a Layer votes, and does not call {hook}; distdl.nn.Module does")

    def __init__(self, arguments: Mapping[str, object]) -> None:
        super().__init__(arguments)
        self.vote_among(self.calling_grids(), self.tensors, self.optional)
        if self.agreement is not None:
            for key in self._parameter_names:
                layout = self.layouts[key]
                self.agreement.expect(key, list(layout.local_shape), not layout.grid.active)
        result = getattr(self, "P_y", None) or self.P_x
        self._dims_of_nothing = 0 if result.active else self.result_dims(result.dim)
        self.key_in_graphs = new_key(self)

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.key_in_graphs = new_key(self)  # a copy needs another key

    # A call, from its beginning to its end

    def forward(self, *args: object, **kwargs: object) -> object:
        """Vote, set up if anything changed, and compute. Collective over the layer's ranks."""
        if is_compiling():
            return call_in_graph(self.key_in_graphs, list(self.parameters()), args, kwargs)
        if kwargs or may_override(args):
            return overridden(self.call, self.refuse, args, kwargs)
        return self.call(*args)

    def call(self, *args: object, **kwargs: object) -> object:
        """Do the work of :meth:`forward`, also while a compiler traces."""
        if kwargs or len(args) != len(self.tensors):
            args = self._in_order(args, kwargs)
        agreement = self._distdl_agreement
        if agreement is None or not agreement.active:
            return self._call_outside(args)
        try:
            with unseen_by_modes():
                self._vote_and_set_up(agreement, args)
            if self.first_values is not None:
                self._check_first_call(args)
            is_differentiated = agreement.is_differentiated
            if is_differentiated and agreement.meets_inference_tensors:
                args = differentiable(args)
            try:
                result = self.compute(*args)
            except RuntimeError as error:
                self.hint_at_parameters(error)
                raise
            if self._dims_of_nothing:
                result = reshape_empty(result, self._dims_of_nothing)
            if agreement.sizes_are_in_question:
                check_sizes(self, result)
            if is_differentiated:
                self.ask_for_gradients(result)
            return result if saved_tensors_hooks() is None else recompute_together(result)
        finally:
            agreement.leave()

    def _in_order(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        """The arguments in the order of :meth:`compute`."""
        self.refuse_misfit(self.compute, args, kwargs)
        bound = inspect.signature(self.compute).bind(*args, **kwargs)
        if bound.kwargs:  # optional tensors were left out
            bound.apply_defaults()
        return bound.args

    def _call_outside(self, args: tuple[object, ...]) -> object:
        """The call on a rank outside of all partitions."""
        if self.is_random():
            draw_key()  # to keep the ranks' generators equal
        return reshape_empty(self.compute(*args), self._dims_of_nothing)

    def _vote_and_set_up(self, agreement: _core.LayerAgreement, args: tuple[object, ...]) -> None:
        if self._copy_id.is_new:
            self.begin_copy()
        if self.vote_on(agreement, args) or not self._distdl_is_setup:
            if self._distdl_is_setup:
                self._distdl_module_teardown(args)
            with self.setting_up():
                self._distdl_module_setup(args)

    def vote_on(self, agreement: _core.LayerAgreement, args: tuple[object, ...]) -> bool:
        """Vote on a call: whether the structure of any tensor changed, on any rank, since the last call.

        Errors that this rank meets take part in the vote, and are raised on all ranks. The vote itself refuses tensors,
        parameters and buffers without values, and transforms of torch: see ``src/agreement/layer_facts.cpp``.
        """
        tensors: Sequence[object] = ()
        parameters: Sequence[torch.Tensor] = ()
        buffers: Sequence[torch.Tensor] = ()
        beside: Sequence[Applied] = ()
        text, key, problem = "", None, None
        try:
            others = self._text_of_others(args) if len(args) > len(self.tensors) else ""
            tensors = self.compared_tensors(args[: len(self.tensors)])
            if self._modules or self._forward_pre_hooks:  # before weights are computed
                self._refuse_parametrizations()
            buffers = self.buffers_in_use()
            text = ", ".join(filter(None, (others, self.changed_options(), self.compared_each_call())))
            parameters = self.voted_parameters()
            if self.is_random():
                key = draw_key()
                key = key if self.grid.rank == 0 else 0
            if agreement.spans_hosts and self._distdl_is_setup:
                with suppress(Exception), torch.no_grad():  # the call itself meets the reason, and says it better
                    beside = self.beside_vote(args, parameters)
        except Exception as error:  # of an argument, or of an option with a bad value
            deleted = isinstance(error, AttributeError)  # a parameter, perhaps deleted by a parametrization
            what = "meets a parameter that is not there" if deleted else "cannot be passed on"
            problem = ValueError(f"{what}: {safe_text(error, str) or type(error).__name__}")
        changed = agreement.agree(tensors, parameters, text, key, buffers, len(self._buffers), problem, beside)
        if key is not None:
            self.random_key = agreement.broadcast
        return changed

    def _refuse_parametrizations(self) -> None:
        """Raise if a parametrization needs a whole weight: it would compute each block from itself."""
        for problem in problem_of_parametrizations(self, self.known_modules()):
            raise ValueError(problem)

    def _distdl_module_setup(self, input: tuple[object, ...]) -> None:
        try:
            self.set_up_for(input)
        except Exception as error:
            if not hasattr(error, "is_shown_by_another"):  # a vote within says who shows it
                shown_by(error, self.grid.ranks[0], self.grid.me)
            raise

    def set_up_for(self, args: tuple[object, ...]) -> None:
        """Set up for the arguments of a call. Exceptions must be raised on all ranks."""
        self.others = args[len(self.tensors) :]
        self.set_up()

    def _check_first_call(self, args: tuple[object, ...]) -> None:
        first, self.first_values = self.first_values, None
        assert first is not None
        for check in first_call_checks:
            check(self, first, args)

    def _text_of_others(self, args: tuple[object, ...]) -> str:
        """The arguments that are no tensors, for the vote."""
        names, others = _arguments_of(type(self).compute)[1 + len(self.tensors) :], args[len(self.tensors) :]
        return ", ".join(f"{name}={safe_text(value)}" for name, value in zip(names, others, strict=False))

    # Methods for derived classes

    def compared_tensors(self, inputs: Sequence[object]) -> Sequence[object]:
        """The tensors of a call for the vote; an exception in place of a tensor describes its error."""
        return inputs

    def compared_each_call(self) -> str:
        """Text that must be equal on all ranks in each call; if it changes, :meth:`set_up` runs.

        Options, also of layers within, are always compared. A layer that depends on its mode includes it here.
        """
        return ""

    def beside_vote(self, args: tuple[object, ...], parameters: Sequence[torch.Tensor]) -> list[Applied]:
        """Up to two operators that :meth:`compute` applies to these tensors, once, if nothing has changed.

        Between hosts their messages travel beside the vote on the call, if those of both are small on all ranks. A rank
        names the same operators as the others, or none.

        Args:
            parameters: the parameters that the vote is about.
        """
        return []

    def is_random(self) -> bool:
        """Whether the next call draws random numbers; equal on all ranks.

        Such a call takes a number from torch's default generator, on every rank. ``self.random_key`` is the number of
        worker 0 of P_x, on all ranks; activation checkpointing rewinds the generators, and repeats it. See
        ``distdl.nn.base.random_numbers``.
        """
        return False

    def set_up(self) -> None:
        """Prepare for tensors of this structure, which all ranks of the layer know. Exceptions are raised on all ranks.

        Ranks outside of the layer's partitions do not run it.
        """

    compute: ClassVar[Callable[..., object]] = _not_defined
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
        _core.require_gradients(result)

    def without_part(self, input: torch.Tensor) -> torch.Tensor:
        """The result on a rank without work: its input, connected to the parameters.

        The rank takes part in the communication of the other ranks' backward passes.
        """
        parameters = self.parameters_in_use()
        return connect_to(input, *parameters) if parameters else empty_result(input)


DeclaredLayer.reserved_names = frozenset(dir(Layer))
