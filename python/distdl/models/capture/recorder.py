"""Record the computation of a model while it runs on tensors without values.

The model runs once on fake tensors of the whole input's shape. Each function of torch that it calls, and each layer of
torch.nn that is known as a whole, becomes a node. A model may compute with sizes and branch on them, not on values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from distdl.models.capture import unrecorded
from distdl.models.capture.arguments import normalize_arguments
from distdl.models.capture.attention_by_heads import attention_by_heads
from distdl.models.capture.checkpoints import Checkpoints
from distdl.models.capture.decompositions import INLINED, SPLITTING, decomposition, inlined, split_calls, with_values
from distdl.models.capture.elementwise import ELEMENTWISE, MASKING
from distdl.models.capture.function_caches import is_kept_by_a_function
from distdl.models.capture.functions import (
    WITHOUT_VALUES,
    asks_again_for_gradients,
    key_of,
    with_lost_arguments,
    without_count_of_batches,
    without_template,
)
from distdl.models.capture.interception import FunctionClass, apply_of, end_of_apply, intercepted_calls
from distdl.models.capture.kept_tables import KeptTables
from distdl.models.capture.known_values import KnownValues, really
from distdl.models.capture.layers_of_functions import layer_of
from distdl.models.capture.looks import Looks
from distdl.models.capture.recording import Arguments, Function, ModuleBoundary, Node, Options, Recording, Target, Value
from distdl.models.capture.refused_looks import UnknownValuesError
from distdl.models.capture.results import Results
from distdl.models.capture.selections import UNKNOWN_NUMBER, Selections
from distdl.models.capture.source_line import source_line
from distdl.models.capture.tensors import RecordedTensors
from distdl.progress_bars import ProgressBar
from distdl.torch_compat.autograd import number_of_writes
from distdl.torch_compat.fake import errors_of_missing_values
from distdl.torch_compat.memory import is_view
from distdl.torch_compat.trees import tree_leaves, tree_map_only

_QUERIES = {"requires_grad", "is_leaf", "grad"}  # attributes of tensors that are no result of a computation
_ERRORS_OF_TORCH = (RuntimeError, ValueError, TypeError, IndexError)


class _Call(NamedTuple):
    """A call with tensors among its arguments, or with values in place of them."""

    target: Target
    key: str
    args: Arguments
    kwargs: dict[str, object]


class Recorder(TorchFunctionMode):
    """Records the functions of torch that are called in its context.

    Args:
        inputs: the tensors of the call.
        names: of parameters and buffers, by id.
        key_of_layer: the key of a module that becomes one node; "" if the functions that it calls do.
        attributes: names of attributes of modules, by the id of the objects that they hold.
        real_strides: whether each call also runs with zeros, so that values have the strides of real tensors.
        bar: advances with each call that is recorded.
        earlier: tensors of an earlier call, which the model may have kept.
        looks: finds the outcomes of looks at values; None if they are refused.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Sequence[torch.Tensor],
        names: Mapping[int, str],
        key_of_layer: Callable[[torch.nn.Module], str],
        attributes: Mapping[int, str],
        real_strides: bool = False,
        bar: ProgressBar | None = None,
        earlier: KeptTables | None = None,
        looks: Looks | None = None,
    ) -> None:
        super().__init__()
        self._bar, self._key_of_layer, self._real_strides = bar, key_of_layer, real_strides
        self._selections = Selections(ELEMENTWISE)
        self._earlier = earlier
        self.tensors = RecordedTensors(model, names, attributes, self._selections, self._kept)
        self._paths = {id(module): path for path, module in reversed([*model.named_modules()])}
        self._path = [""]
        self._slices: dict[int, Arguments] = {}  # the arguments of x[index] by the id of the result, a view
        self._autocast, self._checkpoints = unrecorded.autocast(), Checkpoints()
        self._is_in_call, self._results = False, Results(real_strides)
        self._underived: list[torch.Tensor] = []  # by which torch has no derivative of the current call
        self.recording = Recording([self.tensors.new(tensor) for tensor in inputs])
        self.known = KnownValues(self.recording, self.tensors, looks=looks)

    def around_modules(self) -> AbstractContextManager[None]:
        """Record layers, and functions with a derivative of their own, as a whole."""
        return intercepted_calls(self._call_module, self._apply, self._vmap, lambda: not self._is_in_call)

    def _kept(self, tensor: torch.Tensor) -> Value | None:
        return None if self._earlier is None else self._earlier.value(tensor, self.recording, self.tensors)

    # Calls

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if self._is_in_call:
            return func(*args, **(kwargs or {}))
        args, kwargs = normalize_arguments(func, args, with_lost_arguments(func, args, kwargs or {}))
        key = key_of(func)
        if asks_again_for_gradients(func, args):
            return args[0]
        if is_kept_by_a_function(args, kwargs):
            return really(func, args, kwargs)
        layer = layer_of(func, args, kwargs)
        with self:  # torch has switched it off during this method
            for special in (self.known.look, self._of_selections):
                result = special(func, key, args, kwargs)
                if result is not NotImplemented:
                    return result
            if layer is not None and self._key_of_layer(layer[0]):
                return layer[0](*layer[1])
            if key == "multi_head_attention_forward":
                made_by = self.recording.producer(self.tensors.known(args[0]))
                batch_first = made_by is not None and made_by.key == "transpose"
                if (heads := attention_by_heads(batch_first, self._real_strides, *args, **kwargs)) is not None:
                    return heads
            if key in INLINED:
                return inlined(func)(*args, **kwargs)
            if (replacement := decomposition(func, key, args)) is not None:
                return replacement(*args, **kwargs)
        if (plain := without_template(key, args, kwargs)) is not None:
            func, args, kwargs = plain[0], plain[1], dict(plain[2])
            key = key_of(func)
        return self._call(func, key, func, args, kwargs)

    def _of_selections(self, function: Function, key: str, args: Arguments, kwargs: dict[str, object]) -> object:
        """The result of a call about elements that a mask selects; NotImplemented for other calls."""
        try:
            return self._selections.call(function, key, args, kwargs, self._are_alike)
        except NotImplementedError as error:
            raise NotImplementedError(f"{error}, at {source_line()}; {UNKNOWN_NUMBER}") from error

    def _are_alike(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        """Whether two tensors have the same values, being the same functions of the same tensors."""
        return self.recording.is_alike(self.tensors.value(first), self.tensors.value(second), MASKING)

    def _call_module(self, run: Function, module: torch.nn.Module, args: Arguments, kwargs: Options) -> object:
        unrecorded.refuse_scripted(module, f"a module called at {source_line()}")
        self._path.append(self._paths.get(id(module), self._path[-1]))
        try:
            self._note(module, args, kwargs)
            may_record = not self._is_in_call and not self._selections.among((args, kwargs))
            if may_record and (key := self._key_of_layer(module)):
                with without_count_of_batches(module):
                    results = self._call(run, key, module, args, dict(kwargs))
            else:
                results = run(*args, **kwargs)
            self._note(module, args, kwargs, (results,))
            return results
        finally:
            self._path.pop()

    def _note(
        self, module: torch.nn.Module, args: Arguments, kwargs: Options, results: tuple[object, ...] = ()
    ) -> None:
        """Note the beginning of a module's call, or its end with the results, for hooks."""
        if self._is_in_call or id(module) not in self._paths:
            return
        seen = tree_map_only(torch.Tensor, self.tensors.known, (args, dict(kwargs), *results))
        place, checkpoint = len(self.recording.nodes), self._checkpoints.current()
        self.recording.boundaries.append(
            ModuleBoundary(self._path[-1], place, bool(results), seen[0], seen[1], [*seen[2:], None][0], checkpoint)
        )

    def _apply(self, function: FunctionClass, *args: object, **kwargs: object) -> object:
        if (result := self._checkpoints.apply(function, args)) is not NotImplemented:
            return result
        return self._call(end_of_apply(function), function.__name__, apply_of(function), args, kwargs)

    def _vmap(self, run: Function, *args: object, **kwargs: object) -> object:
        """The result of ``torch.vmap``, whose functions cannot be recorded, of known values."""
        try:
            result = self.known.call(run, args, kwargs)
        except Exception:  # the function uses other tensors
            result = NotImplemented
        return run(*args, **kwargs) if result is NotImplemented else result

    def _call(self, run: Function, key: str, target: Target, args: Arguments, kwargs: dict[str, object]) -> object:
        """Run a call, and record it."""
        self._is_in_call = True
        try:
            unrecorded.refuse_call(key, target, args, kwargs)
            tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
            versions = {id(tensor): number_of_writes(tensor) for tensor in tensors}
            run = WITHOUT_VALUES.get(key, run)
            result, self._underived = self._results.of(target, run, args, kwargs, versions)
            return self._record(_Call(target, key, args, kwargs), versions, result)
        except errors_of_missing_values() as error:
            raise UnknownValuesError(key, source_line()) from error
        except Exception as error:
            if type(error) in _ERRORS_OF_TORCH:
                raise type(error)(f"{error}, at {source_line()}") from error
            raise
        finally:
            self._is_in_call, self._underived = False, []

    # Nodes

    def _record(self, call: _Call, versions: Mapping[int, int], result: object) -> object:
        """The result of a call. The call becomes a node if it returns a new tensor or has written into one.

        Args:
            versions: of the tensors before the call; other versions now show that the call has written into them.
        """
        target, key, args, kwargs = call
        results = args[0] if key == "setitem" else result
        tensors = [tensor for tensor in tree_leaves(results) if isinstance(tensor, torch.Tensor)]
        if isinstance(target, torch.nn.Module):  # a layer writes into its own buffers, and rules know it
            self.tensors.note_writes([*target.buffers()])
        if not tensors or key in _QUERIES:
            return result
        written = [x for x in tensors if versions.get(id(x), number_of_writes(x)) != number_of_writes(x)]
        if not written and all(id(tensor) in versions for tensor in tensors):
            return result  # an argument as it is
        if key in SPLITTING:
            for take, part, arguments in split_calls(key, args, kwargs, tensors):
                self._add_node(self._described(_Call(take, take.__name__, arguments, {})), self.tensors.new(part))
            return result
        self.tensors.versions_before = versions
        described = self._described(call)
        self.tensors.versions_before = {}
        self._add_nodes(described, results, {id(x): self.tensors.current(x) for x in written})
        if key == "getitem" and is_view(result):
            self._slices[id(result)] = args
        for tensor in written:
            self._write_through(tensor)
        return result

    def _described(self, call: _Call) -> _Call:
        return _Call(call.target, call.key, *self.tensors.values_in(call.args, call.kwargs))

    def _add_nodes(self, call: _Call, results: object, written: Mapping[int, Value]) -> None:
        """Add a call that may write into tensors: without gradients, these keep their derivatives.

        Args:
            written: the values, before the call, of tensors that it has written into, by id.
        """
        keeps_derivative = not torch.is_grad_enabled()
        kept: list[tuple[torch.Tensor, Value]] = []

        def described(tensor: torch.Tensor) -> Value:
            if not (keeps_derivative and tensor.requires_grad and id(tensor) in written):
                return self.tensors.new(tensor)
            kept.append((tensor, self.tensors.new(torch.empty_like(tensor))))
            return kept[-1][1]

        self._add_node(call, tree_map_only(torch.Tensor, described, results), tuple(written.values()))
        with torch.enable_grad():
            for tensor, values in kept:
                replaced = _Call(with_values, with_values.__name__, (written[id(tensor)], values), {})
                self._add_node(replaced, self.tensors.new(tensor))

    def _add_node(self, call: _Call, results: object, written: tuple[Value, ...] = ()) -> None:
        tensors, layer = self.tensors, call.target if isinstance(call.target, torch.nn.Module) else None
        parameters = {} if layer is None else tensors.parameters_of(layer)
        buffers = {} if layer is None else tensors.names_of_buffers(layer)
        autocast = {kind: dtype for kind, dtype in unrecorded.autocast().items() if self._autocast[kind] != dtype}
        records, checkpoint = torch.is_grad_enabled(), self._checkpoints.current()
        if self._bar is not None:
            self._bar.advance()
        if records and any(value.is_differentiable for value in tree_leaves(results) if isinstance(value, Value)):
            tensors.refuse_lost_gradients((call.args, call.kwargs, parameters))
        self.recording.add(
            Node(*call, results, self._path[-1], source_line(), records, checkpoint, autocast,
                 written, parameters, buffers, tuple(map(tensors.current, self._underived)))
        )  # fmt: skip

    def _write_through(self, tensor: torch.Tensor) -> None:
        """Let tensors that share memory with a tensor that was written into show it, or not be used any more."""
        whole, index, *_ = self._slices.get(id(tensor), (None, None))
        for other in self.tensors.sharing_memory(tensor):
            if other is whole:
                call = self._described(_Call(torch.Tensor.__setitem__, "setitem", (other, index, tensor), {}))
                self._add_nodes(call, other, {id(other): call.args[0]})
                self._write_through(other)
                self.tensors.stale.discard(id(tensor))
            elif unrecorded.is_same_view(tensor, other) and not tensor.requires_grad and other.is_leaf:
                with torch.set_grad_enabled(other.requires_grad):  # as of detach() or data
                    run, read = (with_values, (other, tensor)) if other.requires_grad else (torch.clone, (tensor,))
                    self._add_node(self._described(_Call(run, run.__name__, read, {})), self.tensors.new(other))
            else:
                self.tensors.stale.add(id(other))
