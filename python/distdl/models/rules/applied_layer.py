"""Layers of torch.nn that are recorded as a whole, and applied as layers over partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

import distdl.nn
from distdl.models.capture.assignments import HOOKS
from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, Workers
from distdl.models.operations.placement import Blocks
from distdl.models.operations.table import RULES, cut_out
from distdl.nn.base.layer import Layer
from distdl.parameters.layout import parameter_layout
from distdl.partitions.boxes import Interval
from distdl.torch_compat.layers import has_global_hooks


def twin_of(module: torch.nn.Module) -> type[Layer] | None:
    """The layer over partitions that computes the same as a layer of torch.nn; None if there is none."""
    for kind in type(module).__mro__:
        if kind in distdl.nn.SEQUENTIAL:
            twin = distdl.nn.SEQUENTIAL[kind]
            return twin if _computes_as(type(module), kind) and not twin.unknown_options(module) else None
    return None


def _computes_as(kind: type[torch.nn.Module], known: type[torch.nn.Module]) -> bool:
    """Whether a class has the methods of another class, except methods that run before a call."""
    before = ("__init__", "reset_parameters", "extra_repr", "__repr__", "__setstate__")
    own = [name for base in kind.__mro__ if base not in known.__mro__ for name in vars(base)]
    changed = [name for name in own if callable(getattr(known, name, None)) and name not in before]
    return all(getattr(kind, name) is getattr(known, name) for name in changed)


def key_of_layer(module: torch.nn.Module, in_blocks: Collection[int] = ()) -> str:
    """The key of the rule for a whole module; "" if it is recorded by the functions that it calls.

    Args:
        in_blocks: the ids of the parameters that a plan splits. Attention with any of them is split along its heads.
    """
    own = vars(module)
    if isinstance(module, torch.nn.MultiheadAttention) and any(id(each) in in_blocks for each in module.parameters()):
        return ""
    if any(own[name] for name in HOOKS) or hasattr(module, "parametrizations") or has_global_hooks():
        return ""  # the call computes more than the layer
    if any(callable(getattr(type(module), name, None)) for name in own) or twin_of(module) is None:
        return ""  # such as a forward() of its own
    known = (kind.__name__ for kind in type(module).__mro__ if kind in distdl.nn.SEQUENTIAL)
    return next((name for name in known if name in RULES), "")


def layer_operation(
    node: Node,
    shape: Sequence[int],
    specs: Sequence[InputSpec],
    whole_dims: Sequence[int],
    placements: Callable[[Workers], Blocks | list[Blocks]] | None = None,
) -> Operation:
    """The operation of a layer over partitions, split in any dimension but `whole_dims`."""
    kept = frozenset(range(len(shape))) - set(whole_dims)
    return Operation((*shape,), (*specs,), lambda workers: apply_layer(node, workers), kept, placements=placements)


def apply_layer(node: Node, workers: Workers | None) -> Run:
    """A function that applies a layer to blocks and to the parameters after them. Constructing is collective."""
    module = node.module
    if workers is None:
        if any(True for _ in module.buffers()):
            raise NoRuleError(f"{node.key} of parameters and constants alone")
        return with_parameters(node, module)
    kind = twin_of(module)
    assert kind is not None
    options = kind.options_of(module)
    if "device" in kind.names_of_arguments():
        options["device"] = "meta"  # no own values are used
    make: Callable[..., Layer] = kind
    with parameter_layout("replicated"):
        layer = make(workers.grid, **options)
    layer.train(module.training)
    for module in layer.modules():
        if isinstance(module, Layer):
            module.first_values = None  # first calls are checked for the whole model
    return AppliedLayer(layer, node)


def with_parameters(node: Node, module: torch.nn.Module) -> Run:
    """A function that calls a layer of torch.nn with the parameters after the arguments."""
    count, values = len(node.arguments), dict[str, torch.Tensor]()
    call = node.as_function(lambda *args, **kwargs: torch.func.functional_call(module, values, args, kwargs))

    def run(*tensors: torch.Tensor) -> object:
        values.update(zip(node.parameters, tensors[count:], strict=True))
        try:
            return call(*tensors[:count])
        finally:
            values.clear()

    return run


class AppliedLayer:
    """A layer that takes its parameters in each call.

    Attributes:
        layer: the layer, without parameters of its own.
    """

    def __init__(self, layer: Layer, node: Node) -> None:
        self.layer, self._names = layer, node.buffers
        self._count = len(node.arguments)
        self._call = node.as_function(layer)
        self._slots: list[tuple[dict[str, object], str, Sequence[Interval]]] = []
        layer.use_parameters_in_place()
        for name in node.parameters:
            path, _, leaf = name.rpartition(".")
            held = vars(layer.get_submodule(path))["_parameters"]  # assigning an attribute would take a Parameter
            self._slots.append((held, leaf, layer.layouts[name].intervals or ()))
        self._own = [held[leaf] for held, leaf, _ in self._slots]
        self._buffers: Mapping[str, torch.Tensor] = {}
        self._places: list[tuple[dict[str, object], str, str]] = []

    def use_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Use the model's buffers, looked up in each call, in place of the layer's own."""
        self._buffers = buffers
        for name in [name for name, _ in self.layer.named_buffers()]:
            path, _, leaf = name.rpartition(".")
            held = vars(self.layer.get_submodule(path))["_buffers"]
            if name in self._names:
                self._places.append((held, leaf, self._names[name]))
            else:
                held[leaf] = None  # a count of batches, which functions do not need

    def __call__(self, *tensors: torch.Tensor) -> object:
        """Call the layer with its inputs and the whole parameters after them."""
        for (held, leaf, intervals), value in zip(self._slots, tensors[self._count :], strict=True):
            held[leaf] = cut_out(value, intervals)
        for place, leaf, name in self._places:
            place[leaf] = self._buffers[name]
        try:
            return self._call(*tensors[: self._count])
        finally:
            for (held, leaf, _), own in zip(self._slots, self._own, strict=True):
                held[leaf] = own  # so that nothing keeps the graph of the parameters alive
