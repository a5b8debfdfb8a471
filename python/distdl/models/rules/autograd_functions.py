"""Functions with a derivative of their own, whose rule is derived from the functions that both passes call."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import cast

import torch
from torch.overrides import TorchFunctionMode

from distdl.models.capture.arguments import normalize_arguments
from distdl.models.capture.functions import key_of, with_lost_arguments, without_template
from distdl.models.capture.interception import FunctionClass, end_of_apply, intercepted_calls
from distdl.models.capture.recording import Arguments, Function, Node, Options, Value
from distdl.models.capture.unrecorded import storage_of
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, Sharded
from distdl.models.operations.table import RULES, Rule, local
from distdl.models.rules.axes import Along, Axes
from distdl.models.rules.reductions import reduced_dims
from distdl.torch_compat.autograd import autograd_again, gradients_seen_by_modes
from distdl.torch_compat.fake import FakeTensorMode, without_log
from distdl.torch_compat.modes import with_functions
from distdl.torch_compat.operators import OpOverload
from distdl.torch_compat.trees import tree_leaves, tree_map_only

_LINEAR = {"clone", "contiguous", "detach", "neg", "permute", "reshape", "squeeze", "sum", "t", "to", "transpose",
           "unsqueeze", "view"}  # fmt: skip
"""Functions that may follow the sum of a worker's block: the sums of all blocks can be added afterwards."""
_SHAPED = {"expand", "reshape", "view"}
"""Functions with sizes as arguments."""
_OF_LAYERS = ("attention", "drawing", "norms", "recurrent", "sampling", "spectra", "windows")
"""Modules with rules of functions that need more than blocks."""


Split = tuple[list[InputSpec], set[int]]
"""The regions of the inputs that workers read, and the dimensions of the result that may not be split."""


def derived(node: Node, kind: FunctionClass, known: dict[str, object]) -> Operation:
    """The dimensions along which blocks of a function's inputs and gradients give blocks of its results.

    Both passes run on tensors without values, and rules say along which dimensions each of their functions is computed
    in blocks. They run again on tensors of other sizes along these: what they compute may not depend on sizes.

    Args:
        known: what is known of calls of alike tensors, also what stood in the way; this call is added.

    Raises:
        NoRuleError: that says what stands in the way.
    """
    tensors = (node.args, dict(node.kwargs), node.results, node.written)
    call = f"{id(kind)} {tree_map_only(Value, _kind_of, tensors)!r}"
    if call not in known:
        try:
            known[call] = _split(node, kind)
        except NoRuleError as reason:
            known[call] = str(reason)  # without its traceback, which would keep tensors
    split = known[call]
    if isinstance(split, str):
        raise NoRuleError(split)
    return local(node, *cast(Split, split))


def _kind_of(value: Value) -> tuple[object, ...]:
    return value.shape, value.dtype, value.is_differentiable


def _split(node: Node, kind: FunctionClass) -> Split:
    first = _Passes(node, kind, [value.shape for value in node.inputs])
    free = first.axes.free
    if any(value.shape != node.outputs[0].shape for value in node.outputs) or node.written:
        raise NoRuleError(f"{node.key} writes into an input, or has results of several shapes; {_OUT}")
    places = {axis: d for d, axis in enumerate(first.result) if axis in free}
    if not places:
        raise NoRuleError(f"{node.key} computes along all dimensions of its result, forward or backward; {_OUT}")
    for resized in (lambda n: 2 * n, lambda n: 1):
        shapes = [
            [resized(n) if axis in places else n for n, axis in zip(value.shape, own, strict=True)]
            for value, own in zip(node.inputs, first.inputs, strict=True)
        ]
        if _Passes(node, kind, shapes).calls != first.calls:
            raise NoRuleError(f"{node.key} computes with sizes of its input; {_OUT}")
    specs: list[InputSpec] = [
        tuple(Sharded(places[axis]) if axis in places else None for axis in own) for own in first.inputs
    ]
    return specs, set(range(len(first.result))) - set(places.values())


_OUT = "a rule under this name says how it is split"


class _Passes(TorchFunctionMode):
    """The forward and the backward pass of a function on tensors without values.

    Args:
        shapes: of the tensors.

    Attributes:
        axes: of all tensors of both passes.
        inputs, result: the axes of the inputs and of the first result.
        calls: the functions, with the arguments that are no tensors, and the numbers of dimensions of their results.
    """

    def __init__(self, node: Node, kind: FunctionClass, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.axes, self.calls = Axes(), list[tuple[object, ...]]()
        self._known: dict[object, Along] = {}
        self._alive: list[torch.Tensor] = []
        tensors: list[torch.Tensor] = []
        with (
            with_functions(), autograd_again(), torch.enable_grad(), without_log(),
            FakeTensorMode(allow_non_fake_inputs=True),
            intercepted_calls(_call_module, _apply_again, _call, lambda: True),
        ):  # fmt: skip
            for value, shape in zip(node.inputs, shapes, strict=True):
                tensors.append(
                    torch.empty(tuple(shape), dtype=value.dtype, device="cpu").requires_grad_(value.is_differentiable)
                )
                self._note(tensors[-1], self.axes.new(value.shape))
            try:
                self._run(node, kind, tensors)
            except Exception as error:
                raise NoRuleError(f"{node.key} of blocks: {type(error).__name__}: {error}") from error

    def _run(self, node: Node, kind: FunctionClass, tensors: list[torch.Tensor]) -> None:
        inputs = [self._along(tensor) for tensor in tensors]
        with self:
            results = node.as_function(end_of_apply(kind))(*tensors)
        outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        along = self._along(outputs[0])
        for other in map(self._along, outputs):
            self.axes.unite(along, other)
            self.axes.bind(other.summed)
        graded = [tensor for tensor in outputs if tensor.requires_grad]
        wanted = [(tensor, own) for tensor, own in zip(tensors, inputs, strict=True) if tensor.requires_grad]
        if graded and wanted:
            of_results = [torch.empty_like(tensor) for tensor in graded]
            for gradient, tensor in zip(of_results, graded, strict=True):
                self._note(gradient, self._along(tensor))
            with self:
                gradients = gradients_seen_by_modes(graded, [own for own, _ in wanted], of_results)
            for gradient, (_, own) in zip(gradients, wanted, strict=True):
                if gradient is not None:
                    self.axes.end_gradient(self._along(gradient), own, along)
        self.axes.bind_twice(self._known.values())
        self.inputs = [self.axes.numbers(own) for own in inputs]
        self.result = self.axes.numbers(along)

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: dict[str, object] | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if isinstance(func, OpOverload) or func is torch.empty_strided:  # of tensors without values
            return result
        args, kwargs = normalize_arguments(func, args, with_lost_arguments(func, args, kwargs or {}))
        plain = without_template(key_of(func), args, kwargs)
        if plain is not None:
            func, args, kwargs = plain[0], plain[1], dict(plain[2])
        key = key_of(func)
        results = args[0] if key == "setitem" else result
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        if not tensors or key in ("requires_grad", "is_leaf", "grad", "grad_fn"):
            return result
        before = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        self.calls.append((key, "" if key in _SHAPED else repr(others), *(tensor.dim() for tensor in tensors)))
        described = tree_map_only(torch.Tensor, self._value, (args, kwargs, results))
        values, options, made = described
        node = Node(func, key, values, options, made, path="", source="", records_gradients=True)
        for tensor, along in zip(tensors, self._of_call(node, list(map(self._along, before))), strict=True):
            self._note(tensor, along)
        return result

    def _of_call(self, node: Node, inputs: list[Along]) -> list[Along]:
        """The axes of the results of a call."""
        outputs = [value.shape for value in node.outputs]
        if node.key in ("sum", "mean") and len(inputs) == 1:
            return [self.axes.reduced(inputs[0], *reduced_dims(node), is_sum=node.key == "sum")]
        operation = None
        rule = RULES.get(node.key)
        squeezes_all = node.key == "squeeze" and len(node.args) + len(node.kwargs) == 1
        if rule is not None and not squeezes_all and not _is_of_layers(node.key, rule):
            with contextlib.suppress(NoRuleError):
                operation = rule(node)
        is_linear = node.key in _LINEAR or (node.key in ("mul", "div", "truediv") and len(inputs) == 1)
        return self.axes.of_operation(operation, inputs, outputs, is_linear)

    # Tensors

    def _note(self, tensor: torch.Tensor, along: Along) -> None:
        self._alive.append(tensor)
        self._known[id(tensor)] = self._known[_place(tensor)] = along

    def _along(self, tensor: torch.Tensor) -> Along:
        """The axes of a tensor; what is saved for the backward pass comes as another object in the same place."""
        along = self._known.get(id(tensor)) or self._known.get(_place(tensor))
        return along or Along((None,) * tensor.dim())

    @staticmethod
    def _value(tensor: torch.Tensor) -> Value:
        return Value(id(tensor), tuple(tensor.shape), tensor.dtype, tensor.requires_grad, strides=tensor.stride())


def _is_of_layers(key: str, rule: Rule) -> bool:
    """Whether an operation may need more than the blocks of its inputs."""
    return key == "pad" or rule.__module__.rpartition(".")[2] in _OF_LAYERS


def _call_module(run: Function, module: torch.nn.Module, args: Arguments, kwargs: Options) -> object:
    return run(*args, **kwargs)


def _call(run: Function, *args: object, **kwargs: object) -> object:
    return run(*args, **kwargs)


def _apply_again(kind: FunctionClass, *args: object) -> object:
    return end_of_apply(kind)(*args)


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return storage_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
