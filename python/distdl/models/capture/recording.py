"""The recorded computation of a model: values and the calls between them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from distdl.models.capture import unrecorded
from distdl.models.capture.call_device import on_device_of_call
from distdl.models.capture.marks import KeptTable
from distdl.models.capture.passed_objects import Places
from distdl.torch_compat.trees import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

Function = Callable[..., object]
Arguments = tuple[Any, ...]
Options = Mapping[str, Any]
Target = Callable[..., object]  # a module, too
Run = Callable[..., object]
"""A function of the tensors of a call; on each rank, of its regions of them."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the recorded computation: an input, a parameter, a buffer, a constant, or the result of a node.

    Attributes:
        number: values are numbered in the order in which they are recorded.
        shape, dtype: of the whole tensor.
        is_differentiable: whether it has any derivative, if all inputs ask for gradients.
        name: of a parameter or buffer in the model.
        constant: the values of a tensor that the model has made outside of the call.
        strides: of the whole tensor in one process; random numbers fill it in the order of its memory.
    """

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_differentiable: bool = True
    name: str = ""
    constant: torch.Tensor | None = None
    strides: tuple[int, ...] = ()

    def empty(self, device: torch.device) -> torch.Tensor:
        """An uninitialized whole tensor, as in one process."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"%{self.number}{list(self.shape)}"


def values_in(structure: object) -> list[Value]:
    """The values in a structure such as the arguments of a call, in order."""
    return [leaf for leaf in tree_leaves(structure) if isinstance(leaf, Value)]


@dataclass(frozen=True, eq=False)
class Node:
    """A call of a function or of a layer of torch.nn.

    Attributes:
        target: the function, or the layer without values.
        key: the name by which rules know it, the same for ``torch.add``, ``Tensor.add_`` and ``+=``.
        args, kwargs, results: with values in place of tensors.
        path: the name of the module in which the call stands.
        source: the line of the program in which the call stands.
        records_gradients: whether the call does not stand in ``torch.no_grad()``.
        checkpoint: the number of the activation checkpoint in which the call stands; 0 for none.
        autocast: the dtypes that the model has set around the call, by the kind of device.
        written: the tensors of the call into which it writes.
        parameters: of a layer, by their names in it.
        buffers: the names in the model of a layer's buffers, by their names in the layer.
        underived: the tensors by which torch has no derivative of the call, and which must not ask for gradients.
    """

    target: Target
    key: str
    args: Arguments
    kwargs: Options
    results: object
    path: str
    source: str
    records_gradients: bool
    checkpoint: int = 0
    autocast: unrecorded.Autocast = field(default_factory=dict)
    written: tuple[Value, ...] = ()
    parameters: Mapping[str, Value] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)
    underived: tuple[Value, ...] = ()

    @property
    def module(self) -> torch.nn.Module:
        """The layer of torch.nn that is called."""
        assert isinstance(self.target, torch.nn.Module)
        return self.target

    @functools.cached_property
    def inputs(self) -> list[Value]:
        """The tensors of the call, in order, followed by the parameters."""
        return [*self.arguments, *self.parameters.values()]

    @functools.cached_property
    def arguments(self) -> list[Value]:
        """The tensors of the call, in order."""
        return values_in((self.args, dict(self.kwargs)))

    @functools.cached_property
    def outputs(self) -> list[Value]:
        """The tensors that the call returns, in order."""
        return values_in(self.results)

    def as_function(self, function: Run | None = None) -> Run:
        """The call as a function of the tensors in place of its values.

        Args:
            function: replaces the node's own.
        """
        leaves, structure = tree_flatten((self.args, dict(self.kwargs)))
        target = on_device_of_call(function or self.target, leaves, makes_tensors=not self.inputs)
        slots = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Value)]
        count, names = len(self.args), [*self.kwargs]
        # Most calls are of these two kinds, which take less time.
        first = len(slots)
        if slots == list(range(first)) and [isinstance(leaf, Value) for leaf in self.args[:first]] == [True] * first:
            rest, options = self.args[first:], dict(self.kwargs)

            def on_first(*tensors: torch.Tensor) -> object:
                return target(*tensors[:first], *rest, **options)

            return on_first
        template = [*self.args, *self.kwargs.values()]
        if not any(isinstance(argument, list | tuple | dict | slice) for argument in template):

            def on_positions(*tensors: torch.Tensor) -> object:
                filled = template.copy()
                for slot, tensor in zip(slots, tensors, strict=False):
                    filled[slot] = tensor
                return target(*filled[:count], **dict(zip(names, filled[count:], strict=True)))

            return on_positions

        def on_structure(*tensors: torch.Tensor) -> object:
            filled = list(leaves)
            for slot, tensor in zip(slots, tensors, strict=False):
                filled[slot] = tensor
            own, named = tree_unflatten(filled, structure)
            return target(*own, **named)

        return on_structure

    def __str__(self) -> str:
        inputs = ", ".join(f"{value.name}{list(value.shape)}" for value in self.inputs)
        return f"{self.key} of {inputs or 'no tensors'} in {self.path or 'the model'} ({self.source})"


@dataclass(frozen=True)
class CommonDim:
    """A dimension of a node's results whose indices are computed one by one, each from the same index of the inputs.

    Attributes:
        output: the dimension of each result.
        inputs: the dimension of each input; None for an input that is read whole.
    """

    output: int
    inputs: tuple[int | None, ...]


@dataclass(frozen=True)
class ModuleBoundary:
    """The beginning or the end of a module's call.

    Attributes:
        place: the number of nodes that are recorded before it.
        is_after: whether it is the end, where the results are known.
        args, kwargs, results: with values in place of tensors, and None for tensors without a value.
        checkpoint: the number of the activation checkpoint in which it stands; 0 for none.
    """

    path: str
    place: int
    is_after: bool
    args: Arguments
    kwargs: Options
    results: object
    checkpoint: int


@dataclass(frozen=True, eq=False)
class Look:
    """A call of a function that returns what depends on values, such as ``bool(x.max() > 5)``.

    Attributes:
        function: such as ``torch.Tensor.__bool__``.
        args, kwargs: with values in place of tensors.
        source: the line of the program in which the call stands.
        outcome: what the function returns; None if it is not known yet.
    """

    function: Function
    args: Arguments
    kwargs: Options
    source: str
    outcome: object = None

    @functools.cached_property
    def values(self) -> list[Value]:
        """The tensors of the call, in order."""
        return values_in((self.args, dict(self.kwargs)))

    def outcome_of(self, tensors: Mapping[Value, torch.Tensor]) -> object:
        """The outcome for these tensors."""
        args, kwargs = tree_map_only(Value, lambda value: tensors[value], (self.args, dict(self.kwargs)))
        return self.function(*args, **kwargs)


@dataclass
class Recording:
    """The computation of a model for inputs of certain shapes.

    Attributes:
        inputs: the tensors of the call, in order.
        nodes: the calls, in order.
        boundaries: the beginnings and ends of calls of modules, in order.
        results: the model's results, with values in place of tensors.
        looks: at values that are known in a call only, in order.
        written: the final values of what the model writes into: parameters and buffers by name, and tensors of the call
            by number.
        derivations: what is known of autograd functions, by their calls.
        kept: the names of parameters and buffers on which tensors of an earlier call depend, by their ids.
        tables: the attributes that hold these tensors.
        returned_objects: the objects of the call that the model returns.
        observed: the dimensions along which nodes without a rule may be split, or why there is no telling.
    """

    inputs: list[Value]
    nodes: list[Node] = field(default_factory=list)
    boundaries: list[ModuleBoundary] = field(default_factory=list)
    results: object = None
    looks: list[Look] = field(default_factory=list)
    written: dict[str | int, Value] = field(default_factory=dict)
    derivations: dict[str, object] = field(default_factory=dict)
    kept: dict[int, list[str]] = field(default_factory=dict)
    tables: list[KeptTable] = field(default_factory=list)
    returned_objects: Places = ()
    observed: dict[Node, tuple[CommonDim, ...] | Exception] = field(default_factory=dict)
    _producers: dict[Value, Node] = field(default_factory=dict, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether the recording ends with a look whose outcome is not known."""
        return bool(self.looks) and self.looks[-1].outcome is None

    def add(self, node: Node) -> None:
        """Append a call."""
        self.nodes.append(node)
        self._producers.update(dict.fromkeys(node.outputs, node))

    def producer(self, value: Value | None) -> Node | None:
        """The call that returns a value; None for inputs, and for tensors of the model."""
        return None if value is None else self._producers.get(value)

    def is_alike(self, first: object, second: object, functions: Container[str]) -> bool:
        """Whether values are the same, or results of the same function of alike values.

        Args:
            functions: the names of functions that always have the same result for the same arguments.
        """
        if not isinstance(first, Value) or not isinstance(second, Value):
            return type(first) is type(second) and bool(first == second)
        first, second = self._original(first), self._original(second)
        if first is second:
            return True
        call, other = self._producers.get(first), self._producers.get(second)
        if call is None or other is None or call.key != other.key or call.key not in functions:
            return False
        leaves, structures = zip(*(tree_flatten((node.args, dict(node.kwargs))) for node in (call, other)), strict=True)
        is_same_call = structures[0] == structures[1] and call.outputs.index(first) == other.outputs.index(second)
        return is_same_call and all(self.is_alike(own, others, functions) for own, others in zip(*leaves, strict=True))

    def _original(self, value: Value) -> Value:
        """The value of which a value is a clone, or the value itself."""
        node = self._producers.get(value)
        return value if node is None or node.key != "clone" else self._original(node.inputs[0])
