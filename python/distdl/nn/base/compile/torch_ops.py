"""Operators that stand for layers: compilers trace a layer as a single node, and compiled programs call it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from distdl import _core
from distdl.nn.base.compile.arguments import Tensors, template_of
from distdl.nn.base.compile.calls import call_with, with_caller
from distdl.nn.base.compile.fake import WITH_VALUES, known_results, result_structure
from distdl.nn.base.compile.registry import TracedLayer, records, registered_layer
from distdl.torch_compat.autograd import Context, autograd_again
from distdl.torch_compat.compilers import assume_constant_result
from distdl.torch_compat.operators import keep_in_order


def call_in_graph(
    key: int, parameters: list[torch.Tensor], args: Sequence[object], kwargs: dict[str, object]
) -> object:
    """Trace a layer's call for a compiler. Not collective; the compiled program's call is."""
    tensors: list[torch.Tensor] = []
    template = template_of([list(args), kwargs], tensors)
    device = tensors[0].device.type if tensors else "cpu"
    autocast = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
    call = repr((template, device, autocast))
    results = torch.ops.distdl.layer(tensors, parameters, key, call)
    form = _form_told(key, call)
    if form == "t":
        return results[0]
    remaining = iter(results)
    members = [next(remaining) if mark == "t" else None for mark in form[1:]]
    if form[0] == "[":
        return members
    named = _named_tuple_told(key, call)
    return tuple.__new__(named or tuple, members)  # dynamo does not follow the constructor of a named tuple it was told


@assume_constant_result
def _form_told(key: int, call: str) -> str:
    return records[registered_layer(key)].forms[call][0]


@assume_constant_result
def _named_tuple_told(key: int, call: str) -> type | None:
    return records[registered_layer(key)].forms[call][1]


def run_compiled(layer: TracedLayer, tensors: Tensors, parameters: Tensors, call: str) -> list[torch.Tensor]:
    """Call a layer in a compiled program, and check the sizes of its results on all ranks."""
    structure = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    with with_caller(layer, _core.Caller.compiled_program, known_results(layer, call, structure)):
        return call_with(layer, tensors, parameters, call)


def detached_contiguous(results: Tensors, inputs: Tensors) -> list[torch.Tensor]:
    """Results as operators must return them: contiguous, without an input's memory."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    return [
        result.detach().clone(memory_format=torch.contiguous_format)
        if result.untyped_storage().data_ptr() in storages
        else result.detach().contiguous()
        for result in results
    ]


@dataclass
class Graph:
    """The autograd graph of a layer's call."""

    results: list[torch.Tensor]
    leaves: list[torch.Tensor]


# The operators


_layer_library = torch.library.Library("distdl", "FRAGMENT")
_layer_library.define("layer(Tensor[] tensors, Tensor[] parameters, int layer, str call) -> Tensor[]")
_layer_library.define("layer_alone(Tensor[] tensors, Tensor[] parameters, int layer, str call) -> Tensor[]")
_layer_library.define(
    "layer_recorded(Tensor[] tensors, Tensor[] parameters, int layer, str call, bool[] differentiated) -> Tensor[]"
)
_layer_library.define("layer_backward(Tensor graph, Tensor[] gradients, SymInt[] sizes, str leaves) -> Tensor[]")


@torch.library.impl(_layer_library, "layer", "CompositeImplicitAutograd")
def _call_layer(tensors: Tensors, parameters: Tensors, layer: int, call: str) -> Tensors:
    """Call the layer outside of compilers, with its own graph; for a compiler, call an operator below."""
    inputs = [*tensors, *parameters]
    if all(type(tensor) in WITH_VALUES for tensor in inputs):
        return run_compiled(registered_layer(layer), tensors, parameters, call)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return list(_RecordedLayer.apply(layer, call, len(tensors), *inputs))
    return torch.ops.distdl.layer_alone(tensors, parameters, layer, call)


@torch.library.impl(_layer_library, "layer_alone", "CompositeExplicitAutograd")
def _layer_alone(tensors: Tensors, parameters: Tensors, layer: int, call: str) -> Tensors:
    with torch.no_grad():
        results = run_compiled(registered_layer(layer), tensors, parameters, call)
    return detached_contiguous(results, [*tensors, *parameters])


@torch.library.register_fake("distdl::layer_alone", lib=_layer_library)
def _layer_alone_fake(tensors: Tensors, parameters: Tensors, layer: int, call: str) -> Tensors:
    like = tensors[0]
    return [like.new_empty(sizes, dtype=dtype) for sizes, dtype in result_structure(layer, call, tensors)]


@torch.library.impl(_layer_library, "layer_recorded", "CompositeExplicitAutograd")
def _layer_recorded(
    tensors: Tensors, parameters: Tensors, layer: int, call: str, differentiated: Sequence[bool]
) -> Tensors:
    # Compilers do not know the tensors that the graph saves: they reuse the memory of inputs and results, not of
    # parameters.
    parameter_storages = {parameter.untyped_storage().data_ptr() for parameter in registered_layer(layer).parameters()}
    copies = [
        tensor.detach() if tensor.untyped_storage().data_ptr() in parameter_storages else tensor.detach().clone()
        for tensor in (*tensors, *parameters)
    ]
    with autograd_again(), torch.enable_grad():
        leaves = [copy.requires_grad_(asks) for copy, asks in zip(copies, differentiated, strict=True)]
        results = run_compiled(registered_layer(layer), leaves[: len(tensors)], leaves[len(tensors) :], call)
    copies_of_results = [result.detach().clone(memory_format=torch.contiguous_format) for result in results]
    return [*copies_of_results, _core.holder_of(Graph(results, leaves))]


@torch.library.register_fake("distdl::layer_recorded", lib=_layer_library)
def _layer_recorded_fake(
    tensors: Tensors, parameters: Tensors, layer: int, call: str, differentiated: Sequence[bool]
) -> Tensors:
    graph = torch.empty(0, dtype=torch.uint8, device="cpu")
    return [*_layer_alone_fake(tensors, parameters, layer, call), graph]


@torch.library.impl(_layer_library, "layer_backward", "CompositeExplicitAutograd")
def _layer_backward(graph: torch.Tensor, gradients: Tensors, sizes: Sequence[int], leaves: str) -> Tensors:
    """The gradients of the leaves that require them. All nodes of the graph run, as on other ranks."""
    call_graph = cast(Graph, _core.held_by(graph))
    asking = [leaf for leaf in call_graph.leaves if leaf.requires_grad]
    roots = [
        (result, gradient)
        for result, gradient in zip(filter(_has_derivatives, call_graph.results), gradients, strict=True)
        if result.requires_grad
    ]
    if roots:
        with autograd_again():
            torch.autograd.backward(*map(list, zip(*roots, strict=True)), retain_graph=True)
    of_leaves = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in asking]
    for leaf in asking:
        leaf.grad = None
    return detached_contiguous([leaf.to_dense() if leaf.is_sparse else leaf for leaf in of_leaves], gradients)


@torch.library.register_fake("distdl::layer_backward", lib=_layer_library)
def _layer_backward_fake(graph: torch.Tensor, gradients: Tensors, sizes: Sequence[int], leaves: str) -> Tensors:
    remaining, results = iter(sizes), []
    for dtype, dims in ast.literal_eval(leaves):
        shape = list(itertools.islice(remaining, dims))
        results.append(gradients[0].new_empty(shape, dtype=getattr(torch, dtype)))
    return results


def _has_derivatives(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class _RecordedLayer(torch.autograd.Function):
    """A layer's call and its backward pass, as a compiler traces them."""

    @staticmethod
    def forward(ctx: Context, layer: int, call: str, count: int, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.asks = [tensor.requires_grad for tensor in inputs]
        *results, graph = torch.ops.distdl.layer_recorded(inputs[:count], inputs[count:], layer, call, ctx.asks)
        ctx.save_for_backward(graph)
        leaves = [tensor for tensor, asks in zip(inputs, ctx.asks, strict=True) if asks]
        ctx.sizes = [size for leaf in leaves for size in leaf.shape]
        ctx.leaves = repr([(str(leaf.dtype).removeprefix("torch."), leaf.dim()) for leaf in leaves])
        ctx.mark_non_differentiable(*(result for result in results if not _has_derivatives(result)))
        ctx.differentiable = [_has_derivatives(result) for result in results]
        return tuple(results)

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (graph,) = ctx.saved_tensors
        contiguous = [gradient.contiguous() for gradient, has in zip(gradients, ctx.differentiable, strict=True) if has]
        of_inputs = iter(torch.ops.distdl.layer_backward(graph, contiguous, ctx.sizes, ctx.leaves))
        return None, None, None, *(next(of_inputs) if asks else None for asks in ctx.asks)


# Compilers keep the order of operators with effects: the other ranks make the same calls in the same order.
for _name in ("layer_alone", "layer_recorded", "layer_backward"):
    keep_in_order(_layer_library, f"distdl::{_name}")
