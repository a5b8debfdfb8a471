"""Record the computation of a model while it runs on tensors without values.

The model runs once on fake tensors of the whole input's shape. Each function of torch that it calls, and each layer of
torch.nn that is known as a whole, becomes a node. Sizes are numbers by then, so that a model may compute with them and
branch on them. What depends on the values of a tensor cannot be recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from distdl.models.capture import unrecorded
from distdl.models.capture.arguments import called, normalize_arguments
from distdl.models.capture.autograd_functions import FunctionClass, apply_of, calling_for_apply, end_of_apply
from distdl.models.capture.elementwise import ELEMENTWISE
from distdl.models.capture.functions import (
    DECOMPOSITIONS,
    INLINED,
    SPLITTING,
    inlined,
    key_of,
    layer_of,
    split_calls,
    with_lost_arguments,
    with_values,
    without_a_count,
    without_template,
)
from distdl.models.capture.memory_order import with_real_strides
from distdl.models.capture.recording import Arguments, Function, Node, Recording, Target, Value
from distdl.models.capture.selections import Selections
from distdl.models.capture.unrecorded import version_of
from distdl.torch_compat.autograd import is_checkpoint_hook
from distdl.torch_compat.fake import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from distdl.torch_compat.memory import is_view
from distdl.torch_compat.trees import register_dataclass, tree_flatten, tree_map_only


class Recorder(TorchFunctionMode):
    """Writes down the functions of torch that are called within.

    Args:
        inputs: the tensors of the call.
        names: those of parameters and buffers, by id.
        key_of_layer: the key of a module that becomes one node; "" if what it calls does.
        held: the names of attributes, by the id of what they hold.
        real_strides: whether the strides of values have to be those of tensors with values, for which calls are made.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Sequence[torch.Tensor],
        names: Mapping[int, str],
        key_of_layer: Callable[[torch.nn.Module], str],
        held: Mapping[int, str],
        real_strides: bool = False,
    ) -> None:
        super().__init__()
        self._held, self._real_strides = held, real_strides
        self._values: dict[int, Value] = {}
        self._alive: list[torch.Tensor] = []  # so that no number of a tensor comes twice
        self._names, self._key_of_layer = names, key_of_layer
        self._paths = {id(module): path for path, module in reversed([*model.named_modules()])}
        self._path: list[str] = []
        self._parts: dict[int, Arguments] = {}
        self._stale: set[int] = set()
        self._versions = {id(tensor): version_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self._before: Mapping[int, int] = {}  # the versions that tensors had before a call that is being noted
        self._around, self._autocast = unrecorded.saved_tensors_hook(), unrecorded.autocast()
        self._within = self._returns = False
        self._underived: list[torch.Tensor] = []  # by which there is no derivative of the call that is being noted
        self._checkpoints: dict[object, int] = {}
        self._checkpoint = 0
        self._selections = Selections(ELEMENTWISE)
        self.recording = Recording([self._new(tensor) for tensor in inputs])

    def _new(self, tensor: torch.Tensor, name: str = "", constant: torch.Tensor | None = None) -> Value:
        strides = tensor.stride() if tensor.layout == torch.strided else ()
        described = tuple(tensor.shape), tensor.dtype, tensor.requires_grad, name, constant, strides
        value = Value(len(self._alive), *described)
        self._values[id(tensor)] = value
        self._versions[id(tensor)] = version_of(tensor)
        self._alive.append(tensor)
        return value

    def _value(self, tensor: torch.Tensor) -> Value:
        known = self._values.get(id(tensor))
        if id(tensor) in self._stale:
            raise NotImplementedError(
                f"a tensor of shape {list(tensor.shape)} is used {self._where()} after another one with the same "
                "memory was written into; write into the tensor itself"
            )
        if self._was_written_unseen(tensor):
            raise NotImplementedError(
                f"a tensor of shape {list(tensor.shape)} is used {self._where()} after a function wrote into it that "
                "cannot be recorded"
            )
        if known is not None:
            return known
        if self._selections.among(tensor):
            raise NotImplementedError(f"elements that a mask selects are used {self._where()}; {_UNKNOWN_NUMBER}")
        if id(tensor) in self._names:
            return self._new(tensor, name=self._names[id(tensor)])
        if isinstance(tensor, FakeTensor):
            if tensor.constant is not None:
                return self._new(tensor, constant=tensor.constant)
            raise NotImplementedError(
                f"a tensor of shape {list(tensor.shape)} comes from a function that cannot be recorded, such as "
                f"torch.func.vmap, or from an earlier call, {self._where()}; what a call needs of the one before can "
                "be returned by it, or kept in a buffer"
            )
        return self._new(tensor, constant=tensor)

    def _given(self, args: Arguments, kwargs: dict[str, object]) -> tuple[Arguments, dict[str, object]]:
        described: tuple[Arguments, dict[str, object]] = tree_map_only(torch.Tensor, self._value, (args, kwargs))
        return described

    def _was_written_unseen(self, tensor: torch.Tensor) -> bool:
        now = self._before.get(id(tensor), version_of(tensor))
        return self._versions.get(id(tensor), now) != now

    def known(self, tensor: torch.Tensor, name: str) -> Value | None:
        """The value of a tensor of the model; None for what it was from the beginning, under this name."""
        if id(tensor) in self._stale or self._was_written_unseen(tensor):
            raise NotImplementedError(f"the model writes into {name} in a way that cannot be recorded; use copy_()")
        value = self._values.get(id(tensor))
        return None if value is None or (name and value.name == name) else value

    def described(self, results: object) -> object:
        """Replace the tensors that the model returns by values of the recording.

        Raises:
            NotImplementedError: if it returns objects in which tensors cannot be found.
        """
        for leaf in tree_flatten(results)[0]:
            if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
                register_dataclass(type(leaf))  # from here on its tensors are found, also by gather()
                return self.described(results)
            if not isinstance(leaf, _RETURNED):
                raise NotImplementedError(
                    f"the model returns a {type(leaf).__name__}, in which tensors cannot be found; return tensors in a "
                    "tuple, a list, a dict or a dataclass, or make it known by torch.utils._pytree"
                )
        self._returns = True
        values = tree_map_only(torch.Tensor, self._value, results)
        self._refuse_lost_gradients(values, self._where())
        return values

    def _where(self) -> str:
        return "where the model returns it" if self._returns else f"at {_line()}"

    def _refuse_lost_gradients(self, values: object, where: str) -> None:
        """Refuse tensors that ask for gradients, which no rank would give to the model's own."""
        for value in tree_flatten(values)[0]:
            if isinstance(value, Value) and value.constant is not None and value.constant.requires_grad:
                name = self._held.get(id(value.constant), f"a tensor of shape {list(value.shape)}")
                raise NotImplementedError(
                    f"{name} asks for gradients and is no parameter of the model, {where}; make it a "
                    "torch.nn.Parameter of a module of the model, or use what detach() gives"
                )

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if self._within:
            return func(*args, **(kwargs or {}))
        args, kwargs = normalize_arguments(func, args, with_lost_arguments(func, args, kwargs or {}))
        key = key_of(func)
        layer = layer_of(func, args, kwargs)
        with self:  # torch has switched it off during this method
            selected = self._of_selections(func, key, args, kwargs)
            if selected is not NotImplemented:
                return selected
            if layer is not None and self._key_of_layer(layer[0]):
                return layer[0](*layer[1])
            if key in INLINED:
                return inlined(func)(*args, **kwargs)
            if key in DECOMPOSITIONS:
                return DECOMPOSITIONS[key](*args, **kwargs)
        plain = without_template(key, args, kwargs)
        if plain is not None:
            func, args, kwargs = plain[0], plain[1], dict(plain[2])
            key = key_of(func)
        return self._call(func, key, func, args, kwargs)

    def _of_selections(self, function: Function, key: str, args: Arguments, kwargs: dict[str, object]) -> object:
        """The result of a call about elements that a mask selects; NotImplemented for other calls."""
        try:
            return self._selections.call(function, key, args, kwargs, self._are_alike)
        except NotImplementedError as error:
            raise NotImplementedError(f"{error}, at {_line()}; {_UNKNOWN_NUMBER}") from error

    def _are_alike(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        """Whether two tensors have the same values, being the same functions of the same tensors."""
        return self.recording.is_alike(self._value(first), self._value(second), _SAME_FOR_THE_SAME)

    def _call(self, run: Function, key: str, target: Target, args: Arguments, kwargs: dict[str, object]) -> object:
        self._within = True
        try:
            unrecorded.refuse_call(key, target, args, kwargs, _line)
            tensors = [tensor for tensor in tree_flatten((args, kwargs))[0] if isinstance(tensor, torch.Tensor)]
            versions = {id(tensor): version_of(tensor) for tensor in tensors}
            result, self._underived = called(run, args, kwargs)
            if self._real_strides:
                result = with_real_strides(target, run, args, kwargs, result)
            return self._noted(key, target, args, kwargs, versions, result)
        except (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode) as error:
            raise NotImplementedError(
                f"{key} looks at the values of a tensor, at {_line()}; they are not known before the model runs"
                f"{_INSTEAD.get(key, '')}"
            ) from error
        finally:
            self._within, self._underived = False, []

    def _noted(
        self,
        key: str,
        target: Target,
        args: Arguments,
        kwargs: dict[str, object],
        versions: Mapping[int, int],
        result: object,
    ) -> object:
        """The result of a call, which becomes a node if it is a tensor or if the call has written into one.

        Args:
            versions: those of the tensors before the call, by which is known what it has written into.
        """
        results = args[0] if key in _WRITES else result
        tensors = [tensor for tensor in tree_flatten(results)[0] if isinstance(tensor, torch.Tensor)]
        if isinstance(target, torch.nn.Module):  # a layer writes into its own buffers, and rules know it
            self._versions.update({id(tensor): version_of(tensor) for tensor in target.buffers()})
        if not tensors or key in _ASKS:
            return result
        written = [
            tensor for tensor in tensors if id(tensor) in versions and versions[id(tensor)] != version_of(tensor)
        ]
        if not written and all(id(tensor) in versions for tensor in tensors):
            return result  # an argument as it is
        if key in SPLITTING:
            for take, (part, *arguments) in split_calls(key, args, kwargs, tensors):
                self._note(take, take.__name__, self._given(tuple(arguments), {}), self._new(part))
            return result
        self._before = versions
        before = self._given(args, kwargs)
        into = {id(tensor): self._values[id(tensor)] for tensor in written}
        self._before = {}
        self._note_results(target, key, before, results, into)
        if key == "getitem" and is_view(result):
            self._parts[id(result)] = args
        for tensor in written:
            self._write_through(tensor)
        return result

    def _note_results(
        self,
        target: Target,
        key: str,
        arguments: tuple[Arguments, dict[str, object]],
        results: object,
        into: Mapping[int, Value],
    ) -> None:
        """Note a call with the tensors that it gives.

        Args:
            into: what those of them were that it has written into, by id. Without gradients, they keep their
                derivatives and have other values.
        """
        keeping = not torch.is_grad_enabled()
        kept: list[tuple[torch.Tensor, Value]] = []

        def described(tensor: torch.Tensor) -> Value:
            if not (keeping and tensor.requires_grad and id(tensor) in into):
                return self._new(tensor)
            kept.append((tensor, self._new(torch.empty_like(tensor))))
            return kept[-1][1]

        self._note(target, key, arguments, tree_map_only(torch.Tensor, described, results), tuple(into.values()))
        with torch.enable_grad():
            for tensor, values in kept:
                before = (into[id(tensor)], values), dict[str, object]()
                self._note(with_values, with_values.__name__, before, self._new(tensor))

    def _note(
        self,
        target: Target,
        key: str,
        arguments: tuple[Arguments, dict[str, object]],
        after: object,
        written: tuple[Value, ...] = (),
    ) -> None:
        path = self._path[-1] if self._path else ""
        own = dict(target.named_parameters()) if isinstance(target, torch.nn.Module) else {}
        parameters = {name: self._value(parameter) for name, parameter in own.items()}
        buffers = self._buffers_of(target) if isinstance(target, torch.nn.Module) else {}
        changed = {kind: dtype for kind, dtype in unrecorded.autocast().items() if self._autocast[kind] != dtype}
        records, checkpoint = torch.is_grad_enabled(), self._current_checkpoint()
        if records and any(value.is_differentiable for value in tree_flatten(after)[0] if isinstance(value, Value)):
            self._refuse_lost_gradients((arguments, parameters), f"at {_line()}")
        underived = tuple(self._values[id(tensor)] for tensor in self._underived)
        node = Node(target, key, *arguments, after, path, _line(), records, checkpoint, changed, written, parameters,
                    buffers, underived)  # fmt: skip
        self.recording.nodes.append(node)

    def _buffers_of(self, layer: torch.nn.Module) -> dict[str, str]:
        """The names in the model of a layer's buffers, which it reads and writes in the model itself."""
        names = {}
        for name, buffer in layer.named_buffers():
            names[name] = self._names.get(id(buffer), "")
            if not names[name] or self.known(buffer, names[name]) is not None:
                what = "was written into before" if names[name] else "is no buffer of the model; use register_buffer()"
                raise NotImplementedError(f"the {name} of {type(layer).__name__} {what}, at {_line()}")
        return names

    def _write_through(self, tensor: torch.Tensor) -> None:
        """Tensors that share memory with one that was written into have to show it, or must not be used any more."""
        memory = unrecorded.storage_of(tensor)
        others = [other for other in self._alive if other is not tensor and unrecorded.storage_of(other) == memory]
        self._versions.update({id(other): version_of(other) for other in others})
        part = self._parts.get(id(tensor))
        for other in {id(other): other for other in others}.values():
            if part is not None and other is part[0]:
                before = self._given((other, part[1], tensor), {})
                self._note_results(torch.Tensor.__setitem__, "setitem", before, other, {id(other): before[0][0]})
                self._write_through(other)
                self._stale.discard(id(tensor))
            elif unrecorded.is_same_view(tensor, other) and not tensor.requires_grad and not other.requires_grad:
                before = self._given((tensor,), {})  # what detach() or data gives of it
                self._note(torch.clone, "clone", before, self._new(other))
            else:
                self._stale.add(id(other))

    def _current_checkpoint(self) -> int:
        """The number of the checkpoint around this call. One that is not reentrant is known by its hooks."""
        hook = unrecorded.saved_tensors_hook()
        name = getattr(hook, "__qualname__", "")
        if is_checkpoint_hook(name):
            return self._checkpoints.setdefault(hook, len(self._checkpoints) + 1)
        if hook not in (None, self._around) and not name.startswith("save_on_cpu"):
            raise NotImplementedError(
                f"the model changes what backward passes keep, by saved_tensors_hooks, at {_line()}"
            )
        return self._checkpoint

    @contextlib.contextmanager
    def around_modules(self) -> Iterator[None]:
        """Let layers and functions with a derivative of their own be written down as a whole."""
        call, call_script = torch.nn.Module.__call__, torch.jit.ScriptFunction.__call__

        def recorded(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
            unrecorded.refuse_scripted(module, f"a module called at {_line()}")
            self._path.append(self._paths.get(id(module), self._path[-1] if self._path else ""))
            try:
                is_layer = not self._within and not self._selections.among((args, kwargs))
                if is_layer and (key := self._key_of_layer(module)):
                    run = functools.partial(call, module)
                    with without_a_count(module):
                        return self._call(run, key, module, args, kwargs)
                return call(module, *args, **kwargs)
            finally:
                self._path.pop()

        def applied(function: FunctionClass, *args: Any, **kwargs: Any) -> object:
            if function is CheckpointFunction:
                run, _, *inputs = args
                return self._reentrant(run, inputs)
            return self._call(end_of_apply(function), function.__name__, apply_of(function), args, kwargs)

        def unscripted(function: torch.jit.ScriptFunction, *args: object, **kwargs: object) -> object:
            original = getattr(function, "_torchdynamo_inline", None)  # which torch.compile calls as well
            if self._within or original is None:
                return call_script(function, *args, **kwargs)
            return original(*args, **kwargs)

        torch.nn.Module.__call__ = recorded
        torch.jit.ScriptFunction.__call__ = unscripted
        try:
            with calling_for_apply(applied, lambda: not self._within):
                yield
        finally:
            torch.nn.Module.__call__ = call
            torch.jit.ScriptFunction.__call__ = call_script

    def _reentrant(self, run: Function, args: Sequence[object]) -> object:
        """Run the function of a reentrant checkpoint, with derivatives."""
        before, self._checkpoint = self._checkpoint, self._checkpoints.setdefault(object(), len(self._checkpoints) + 1)
        try:
            return run(*args)
        finally:
            self._checkpoint = before


_RETURNED = (torch.Tensor, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, enum.Enum, type)
"""What a model may return as it is."""
_ASKS = {"requires_grad", "is_leaf", "grad"}
"""What asks something of a tensor and gives none."""
_WRITES = {"setitem"}
_SAME_FOR_THE_SAME = ELEMENTWISE | {
    "all", "any", "expand", "flatten", "getitem", "permute", "reshape", "select", "squeeze", "transpose", "unsqueeze",
    "view",
}  # fmt: skip
"""Functions that masks are made by and that give the same mask for the same arguments."""
_UNKNOWN_NUMBER = (
    "their number is not known before the model runs; functions of each element, sums, means and losses are known, "
    "and mask.sum() is the number. Elsewhere use torch.where(mask, x, other)"
)
_INSTEAD = {
    "bincount": ". Write torch.nn.functional.one_hot(x, classes).sum(0), or torch.histc(x, bins, min, max)",
    "nonzero": ". Write torch.where(mask, x, other)",
    "one_hot": ". Say num_classes",
    "repeat_interleave": ". Repeat as often as a number says",
    "where": ". Write torch.where(mask, x, other)",
}
"""What to write in place of functions whose results have a shape that depends on values."""


def _line() -> str:
    """The innermost line of the program that belongs neither to torch nor to this package."""
    own = Path(__file__).parent.parent
    libraries = (f"{Path(torch.__file__).parent}{os.sep}", f"{own}{os.sep}", "<")  # not torchvision
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(libraries):
            return f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}"
    return "an unknown line"
