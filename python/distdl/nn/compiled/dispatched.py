"""The operators of torch's dispatcher that a layer is to compilers. In a compiled program they call the layer."""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from distdl import _core
from distdl.nn.compiled.arguments import Tensors, template_of
from distdl.nn.compiled.calls import called, called_by
from distdl.nn.compiled.registry import layer_of, records
from distdl.nn.compiled.structures import WITH_VALUES, described, known_results
from distdl.process.compilers import assume_constant_result

if TYPE_CHECKING:
    from distdl.nn.layer import Layer

Context: TypeAlias = torch.autograd.function.FunctionCtx


def call_in_graph(
    key: int, parameters: list[torch.Tensor], args: Sequence[object], kwargs: dict[str, object]
) -> object:
    """The call of the layer of this key, as a compiler traces it. Not collective; that of the compiled program is."""
    tensors: list[torch.Tensor] = []
    template = template_of([list(args), kwargs], tensors)
    device = tensors[0].device.type if tensors else "cpu"
    autocast = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
    call = repr((template, device, autocast))
    results = torch.ops.distdl.layer(tensors, parameters, key, call)
    form = _form_told(key, call)
    if form == "t":
        return results[0]
    left = iter(results)
    filled = [next(left) if one == "t" else None for one in form[1:]]
    if form[0] == "[":
        return filled
    named = _named_tuple_told(key, call)
    return tuple.__new__(named or tuple, filled)  # dynamo does not follow the constructor of a named tuple it was told


@assume_constant_result
def _form_told(key: int, call: str) -> str:
    return records[layer_of(key)].forms[call][0]


@assume_constant_result
def _named_tuple_told(key: int, call: str) -> type | None:
    return records[layer_of(key)].forms[call][1]


def run(layer: Layer, tensors: Tensors, parameters: Tensors, call: str) -> list[torch.Tensor]:
    """:func:`called` in a program that was compiled for results of certain sizes: checked on all ranks."""
    described = tuple((tuple(one.shape), one.dtype) for one in tensors)
    with called_by(layer, _core.Caller.compiled_program, known_results(layer, call, described)):
        return called(layer, tensors, parameters, call)


def own(results: Tensors, inputs: Tensors) -> list[torch.Tensor]:
    """Results as operators have to return them: contiguous, and none in the memory of an input."""
    storages = {one.untyped_storage().data_ptr() for one in inputs}
    return [
        one.detach().clone(memory_format=torch.contiguous_format)
        if one.untyped_storage().data_ptr() in storages
        else one.detach().contiguous()
        for one in results
    ]


@dataclass
class Graph:
    """A layer's call, to be differentiated."""

    results: list[torch.Tensor]
    leaves: list[torch.Tensor]


# The operators


_library = torch.library.Library("distdl", "FRAGMENT")
_library.define("layer(Tensor[] tensors, Tensor[] parameters, int layer, str call) -> Tensor[]")
_library.define("layer_alone(Tensor[] tensors, Tensor[] parameters, int layer, str call) -> Tensor[]")
_library.define(
    "layer_recorded(Tensor[] tensors, Tensor[] parameters, int layer, str call, bool[] differentiated) -> Tensor[]"
)
_library.define("layer_backward(Tensor graph, Tensor[] gradients, SymInt[] sizes, str leaves) -> Tensor[]")


@torch.library.impl(_library, "layer", "CompositeImplicitAutograd")
def _layer(tensors: Tensors, parameters: Tensors, layer: int, call: str) -> Tensors:
    """Outside of a compiler the call itself, with its own graph; for a compiler one of the operators below."""
    everything = [*tensors, *parameters]
    if all(type(one) in WITH_VALUES for one in everything):
        return run(layer_of(layer), tensors, parameters, call)
    if torch.is_grad_enabled() and any(one.requires_grad for one in everything):
        return list(_Recorded.apply(layer, call, len(tensors), *everything))
    return torch.ops.distdl.layer_alone(tensors, parameters, layer, call)


@torch.library.impl(_library, "layer_alone", "CompositeExplicitAutograd")
def _layer_alone(tensors: Tensors, parameters: Tensors, layer: int, call: str) -> Tensors:
    with torch.no_grad():
        return own(run(layer_of(layer), tensors, parameters, call), [*tensors, *parameters])


@torch.library.register_fake("distdl::layer_alone", lib=_library)
def _layer_alone_fake(tensors: Tensors, parameters: Tensors, layer: int, call: str) -> Tensors:
    like = tensors[0]
    return [like.new_empty(sizes, dtype=dtype) for sizes, dtype in described(layer, call, tensors)]


@torch.library.impl(_library, "layer_recorded", "CompositeExplicitAutograd")
def _layer_recorded(
    tensors: Tensors, parameters: Tensors, layer: int, call: str, differentiated: Sequence[bool]
) -> Tensors:
    # A compiler knows nothing of what the graph saves, and uses the memory of inputs and results again; not that of
    # parameters.
    stays = {one.untyped_storage().data_ptr() for one in layer_of(layer).parameters()}
    given = [
        one.detach() if one.untyped_storage().data_ptr() in stays else one.detach().clone()
        for one in (*tensors, *parameters)
    ]
    with autograd_again(), torch.enable_grad():
        leaves = [one.requires_grad_(asks) for one, asks in zip(given, differentiated, strict=True)]
        results = run(layer_of(layer), leaves[: len(tensors)], leaves[len(tensors) :], call)
    own = [one.detach().clone(memory_format=torch.contiguous_format) for one in results]
    return [*own, _core.holder_of(Graph(results, leaves))]


@torch.library.register_fake("distdl::layer_recorded", lib=_library)
def _layer_recorded_fake(
    tensors: Tensors, parameters: Tensors, layer: int, call: str, differentiated: Sequence[bool]
) -> Tensors:
    graph = torch.empty(0, dtype=torch.uint8, device="cpu")
    return [*_layer_alone_fake(tensors, parameters, layer, call), graph]


@torch.library.impl(_library, "layer_backward", "CompositeExplicitAutograd")
def _layer_backward(graph: torch.Tensor, gradients: Tensors, sizes: Sequence[int], leaves: str) -> Tensors:
    """The gradients of the leaves that ask for one. All nodes of the graph run, as those of other ranks do."""
    held = cast(Graph, _core.held_by(graph))
    asking = [one for one in held.leaves if one.requires_grad]
    roots = [
        (one, gradient)
        for one, gradient in zip([one for one in held.results if _has_derivatives(one)], gradients, strict=True)
        if one.requires_grad
    ]
    if roots:
        with autograd_again():
            torch.autograd.backward(*map(list, zip(*roots, strict=True)), retain_graph=True)
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in asking]
    for one in asking:
        one.grad = None
    return own([one.to_dense() if one.is_sparse else one for one in found], gradients)


@torch.library.register_fake("distdl::layer_backward", lib=_library)
def _layer_backward_fake(graph: torch.Tensor, gradients: Tensors, sizes: Sequence[int], leaves: str) -> Tensors:
    left, found = iter(sizes), []
    for dtype, dims in ast.literal_eval(leaves):
        shape = list(itertools.islice(left, dims))
        found.append(gradients[0].new_empty(shape, dtype=getattr(torch, dtype)))
    return found


def _has_derivatives(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


_AUTOGRAD = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")


def autograd_again() -> contextlib.AbstractContextManager[None]:
    """Let torch record graphs: compiled programs run where it does not, even with gradients enabled."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in _AUTOGRAD:
        excluded = excluded.remove(getattr(torch._C.DispatchKey, name))
    guard: contextlib.AbstractContextManager[None] = torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set(), excluded
    )
    return guard


class _Recorded(torch.autograd.Function):
    """A layer's call and its backward pass, as a compiler traces them."""

    @staticmethod
    def forward(ctx: Context, layer: int, call: str, count: int, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.asks = [one.requires_grad for one in given]
        *results, graph = torch.ops.distdl.layer_recorded(given[:count], given[count:], layer, call, ctx.asks)
        ctx.save_for_backward(graph)
        leaves = [one for one, asks in zip(given, ctx.asks, strict=True) if asks]
        ctx.sizes = [size for one in leaves for size in one.shape]
        ctx.leaves = repr([(str(one.dtype).removeprefix("torch."), one.dim()) for one in leaves])
        ctx.mark_non_differentiable(*(one for one in results if not _has_derivatives(one)))
        ctx.differentiable = [_has_derivatives(one) for one in results]
        return tuple(results)

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (graph,) = ctx.saved_tensors
        given = [one.contiguous() for one, has in zip(gradients, ctx.differentiable, strict=True) if has]
        found = iter(torch.ops.distdl.layer_backward(graph, given, ctx.sizes, ctx.leaves))
        return None, None, None, *(next(found) if asks else None for asks in ctx.asks)


# Compilers keep the order of operators with effects: the other ranks make the same calls in the same order.
for _name in ("layer_alone", "layer_recorded", "layer_backward"):
    _library._register_effectful_op(f"distdl::{_name}", torch.library.EffectType.ORDERED)
