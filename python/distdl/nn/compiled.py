"""A layer in a compiled program: one operator of torch's dispatcher, which calls the layer.

``torch.compile`` and ``torch.export`` trace each rank by itself, and cannot follow the agreement of the ranks.
So they do not look into a layer. To them it is an operator that states the structure of its results; in the compiled
program this operator calls the layer, which agrees, sets up and computes as in any other program. Whatever the other
ranks run, they meet in the same calls.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

from distdl import _core

if TYPE_CHECKING:
    from distdl.nn.layer import Layer

Context: TypeAlias = torch.autograd.function.FunctionCtx
Tensors: TypeAlias = Sequence[torch.Tensor]
Described: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""Sizes and dtype of a tensor."""

_layers: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()
_exported: list[Layer] = []  # an exported program may outlive the model that it was made of
# torch keeps compiled programs on disk, where a key of another process must not be found: the first key is random.
_keys = itertools.count(random.SystemRandom().getrandbits(52) << 10)
_TENSOR = "\0tensor"


def new_key(layer: Layer) -> int:
    """The number by which compiled programs know a layer."""
    key = next(_keys)
    _layers[key] = layer
    return key


def call_in_graph(layer: Layer, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """A layer's call, as a compiler traces it. Not collective; the call of the compiled program is."""
    tensors: list[torch.Tensor] = []
    template = _template([list(args), kwargs], tensors)
    device = tensors[0].device.type if tensors else "cpu"
    autocast = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
    call = repr((template, device, autocast))
    results = torch.ops.distdl.layer(tensors, list(layer.parameters()), layer.key_in_graphs, call)
    form = _form_told(layer.key_in_graphs, call)
    if form == "t":
        return results[0]
    left = iter(results)
    filled = [next(left) if one == "t" else None for one in form[1:]]
    if form[0] == "[":
        return filled
    named = _named_tuple_told(layer.key_in_graphs, call)
    return tuple(filled) if named is None else named(*filled)


def _template(value: object, tensors: list[torch.Tensor]) -> object:
    """The arguments of a call with a mark for each tensor, which is its place in `tensors`: there once."""
    if isinstance(value, torch.Tensor):
        for place, one in enumerate(tensors):
            if one is value:  # as in self-attention, which projects one tensor by one product
                return f"{_TENSOR}{place}"
        tensors.append(value)
        return f"{_TENSOR}{len(tensors) - 1}"
    if isinstance(value, dict):
        return {name: _template(one, tensors) for name, one in value.items()}
    if isinstance(value, list):
        return [_template(one, tensors) for one in value]
    if isinstance(value, tuple):
        return tuple([_template(one, tensors) for one in value])
    if isinstance(value, torch.SymInt):
        return int(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a layer in a compiled program takes tensors, numbers and texts; not {type(value).__name__}")


def _filled(template: object, tensors: Tensors) -> object:
    """The arguments of a call, from what :func:`_template` gave."""
    if isinstance(template, str):
        return tensors[int(template.removeprefix(_TENSOR))] if template.startswith(_TENSOR) else template
    if isinstance(template, dict):
        return {name: _filled(one, tensors) for name, one in template.items()}
    if isinstance(template, list | tuple):
        return type(template)([_filled(one, tensors) for one in template])
    return template


Arguments: TypeAlias = tuple[list[object], dict[str, object]]


@functools.cache
def _parsed(call: str) -> tuple[object, str, str]:
    """The template of a call's arguments, its device, and the dtype of autocast or nothing."""
    parsed: tuple[object, str, str] = ast.literal_eval(call)
    return parsed


@dataclass
class _Record:
    """What compilers were told of a layer.

    Attributes:
        results: the structure of the results, by the call and the structure of its tensors.
        forms: how the results are put together, see :func:`_form_of`, and the class of a named tuple of them; by the
            call.
        promised: the structure for which the program of the call under way was compiled.
        guesses: whether sizes may be concluded from those of other tensors; each call of a compiled program checks.
    """

    results: dict[tuple[str, tuple[Described, ...]], list[Described]] = field(default_factory=dict)
    forms: dict[str, tuple[str, type | None]] = field(default_factory=dict)
    promised: list[Described] | None = None
    guesses: bool = True


_records: weakref.WeakKeyDictionary[Layer, _Record] = weakref.WeakKeyDictionary()


def _layer_of(key: int) -> Layer:
    layer = _layers.get(key)
    if layer is None:
        raise RuntimeError(
            "a compiled program calls a layer that is gone, or that was compiled anew since; keep the model for as "
            "long as the program"
        )
    return layer


@torch.compiler.assume_constant_result
def _form_told(key: int, call: str) -> str:
    return _records[_layer_of(key)].forms[call][0]


@torch.compiler.assume_constant_result
def _named_tuple_told(key: int, call: str) -> type | None:
    return _records[_layer_of(key)].forms[call][1]


_WITH_VALUES = (torch.Tensor, torch.nn.Parameter)  # other tensors are those of compilers


# The call of a compiled program


def _call(layer: Layer, tensors: Tensors, parameters: Tensors, call: str) -> list[torch.Tensor]:
    """The results of a layer's call with these tensors in place of its arguments and parameters."""
    template, device, autocast = _parsed(call)
    args, kwargs = cast(Arguments, _filled(template, tensors))
    dtype = getattr(torch, autocast.removeprefix("torch.")) if autocast else None
    with _parameters_of(layer, parameters), torch.autocast(device, dtype, enabled=bool(autocast)):
        result = layer.call(*args, **kwargs)
    named = type(result) if hasattr(result, "_fields") else None
    _records.setdefault(layer, _Record()).forms.setdefault(call, (_form_of(result), named))
    return _tensors_of(result)


def _form_of(result: object) -> str:
    """How results are put together: "t" for a tensor, "(tn" for a tuple of a tensor and None, "[t" for a list."""
    if isinstance(result, torch.Tensor):
        return "t"
    inner = ["t" if isinstance(one, torch.Tensor) else "n" for one in _members_of(result)]
    return ("[" if isinstance(result, list) else "(") + "".join(inner)


def _members_of(result: object) -> Sequence[object]:
    if isinstance(result, tuple | list) and all(one is None or isinstance(one, torch.Tensor) for one in result):
        return result
    raise TypeError("a layer in a compiled program has to return a tensor, or a tuple or list of tensors and None")


def _tensors_of(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [one for one in _members_of(result) if isinstance(one, torch.Tensor)]


@contextlib.contextmanager
def _parameters_of(layer: Layer, parameters: Tensors) -> Iterator[None]:
    """Let a layer use these tensors in place of its parameters."""
    places = []
    for name, _ in layer.named_parameters():
        owner, _, own = name.rpartition(".")
        places.append((torch.nn.Module.get_submodule(layer, owner)._parameters, own))
    before = [held[name] for held, name in places]
    try:
        for (held, name), one in zip(places, parameters, strict=True):
            held[name] = one
        yield
    finally:
        for (held, name), one in zip(places, before, strict=True):
            held[name] = one


def _own(results: Tensors, inputs: Tensors) -> list[torch.Tensor]:
    """Results as operators have to return them: contiguous, and none in the memory of an input."""
    storages = {one.untyped_storage().data_ptr() for one in inputs}
    return [
        one.detach().clone(memory_format=torch.contiguous_format)
        if one.untyped_storage().data_ptr() in storages
        else one.detach().contiguous()
        for one in results
    ]


@contextlib.contextmanager
def _called_by(layer: Layer, caller: _core.Caller, promised: list[Described] | None = None) -> Iterator[None]:
    agreement, record = layer.agreement, _records.setdefault(layer, _Record())
    if agreement is None:
        yield
        return
    agreement.set_caller(caller)
    record.promised = promised
    try:
        yield
    finally:
        agreement.set_caller(_core.Caller.program)
        record.promised = None


def check_sizes(layer: Layer, result: object) -> None:
    """Raise on all ranks of a layer if any rank's compiled program relies on results of another structure.

    Then all of them compile anew at the next call, for a layer of another key. Collective over the layer's ranks.
    """
    record, problem = _records.setdefault(layer, _Record()), ""
    if record.promised is not None:
        found = [(tuple(one.shape), one.dtype) for one in _tensors_of(result)]
        if found != record.promised:
            problem = (
                f"gives results of {_shown(found)}, and this rank's program was compiled for {_shown(record.promised)}"
            )
    everyone = layer.grid.line(tuple(dict.fromkeys(rank for grid in layer.agreeing() for rank in grid.ranks)))
    for rank, said in zip(everyone.ranks, everyone.gather(problem.encode()), strict=True):
        if said:
            _records[layer] = _Record(guesses=False)
            layer.key_in_graphs = new_key(layer)
            raise RuntimeError(
                f"{type(layer).__name__}: on rank {rank} it {said.decode()}: tensors of other ranks have changed. "
                "The next call is compiled anew"
            )


def _shown(described: Sequence[Described]) -> str:
    return ", ".join(f"{list(sizes)} of {dtype}" for sizes, dtype in described)


def _run(layer: Layer, tensors: Tensors, parameters: Tensors, call: str) -> list[torch.Tensor]:
    """:func:`_call` in a program that was compiled for results of certain sizes: checked on all ranks."""
    described = tuple((tuple(one.shape), one.dtype) for one in tensors)
    with _called_by(layer, _core.Caller.compiled_program, _known(layer, call, described)):
        return _call(layer, tensors, parameters, call)


@dataclass
class _Graph:
    """A layer's call, to be differentiated."""

    results: list[torch.Tensor]
    leaves: list[torch.Tensor]


# What compilers are told of the results


def _known(layer: Layer, call: str, tensors: tuple[Described, ...]) -> list[Described] | None:
    """The structure of the results for tensors of this structure, where it is known on this rank alone."""
    record = _records.setdefault(layer, _Record())
    symbolic = any(isinstance(size, torch.SymInt) for sizes, _ in tensors for size in sizes)
    found = None if symbolic else record.results.get((call, tensors))
    if found is None and record.guesses:
        for (other, given), results in record.results.items():
            if other == call and (found := _resized(given, results, tensors)) is not None:
                break
    return found


def _resized(
    given: Sequence[Described], results: Sequence[Described], tensors: Sequence[Described]
) -> list[Described] | None:
    """The results for tensors of other sizes, if each dimension that changed is one of the results as well."""
    if [(len(sizes), dtype) for sizes, dtype in given] != [(len(sizes), dtype) for sizes, dtype in tensors]:
        return None
    changed: dict[int, tuple[int, int]] = {}
    for (before, _), (now, _) in zip(given, tensors, strict=True):
        for d, (old, new) in enumerate(zip(before, now, strict=True)):
            differs = isinstance(new, torch.SymInt) or old != new
            if differs and changed.setdefault(d, (old, new)) != (old, new):
                return None
    resized = []
    for sizes, dtype in results:
        if sizes and any(d >= len(sizes) or sizes[d] != old for d, (old, _) in changed.items()):
            return None
        resized.append((tuple(changed[d][1] if d in changed else n for d, n in enumerate(sizes)), dtype))
    return resized


def _asked(layer: Layer, call: str, tensors: tuple[Described, ...]) -> list[Described]:
    """The structure of the results, by a call on zeros, of which nothing stays. Collective like a call."""
    buffers = [(one, one.clone()) for one in layer.buffers()]
    zeros = [torch.zeros(sizes, dtype=dtype, device=_device_in(call)) for sizes, dtype in tensors]
    # torch.export puts tensors without values in the place of the model's parameters.
    parameters = [
        one if type(one) in _WITH_VALUES else torch.zeros(one.shape, dtype=one.dtype, device=one.device)
        for one in layer.parameters()
    ]
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _called_by(layer, _core.Caller.compiler):
        results = _call(layer, zeros, parameters, call)
    for one, value in buffers:
        one.copy_(value)
    return [(tuple(one.shape), one.dtype) for one in results]


def _device_in(call: str) -> str:
    return str(_parsed(call)[1])


def _described(key: int, call: str, tensors: Tensors) -> list[Described]:
    """The structure of the results, for a compiler."""
    layer = _layer_of(key)
    if torch.compiler.is_exporting() and layer not in _exported:
        _exported.append(layer)
    symbolic = tuple((tuple(one.shape), one.dtype) for one in tensors)
    if (found := _known(layer, call, symbolic)) is not None:
        return found
    structure = tuple((tuple(map(int, sizes)), dtype) for sizes, dtype in symbolic)
    found = _known(layer, call, structure)
    if found is None:
        with _outside_of_compilers():
            found = _asked(layer, call, structure)
    _records[layer].results[call, structure] = found
    return found


@contextlib.contextmanager
def _outside_of_compilers() -> Iterator[None]:
    flag = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        with _disable_current_modes():
            yield
    finally:
        torch.compiler._is_compiling_flag = flag


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
    if all(type(one) in _WITH_VALUES for one in everything):
        return _run(_layer_of(layer), tensors, parameters, call)
    if torch.is_grad_enabled() and any(one.requires_grad for one in everything):
        return list(_Recorded.apply(layer, call, len(tensors), *everything))
    return torch.ops.distdl.layer_alone(tensors, parameters, layer, call)


@torch.library.impl(_library, "layer_alone", "CompositeExplicitAutograd")
def _layer_alone(tensors: Tensors, parameters: Tensors, layer: int, call: str) -> Tensors:
    with torch.no_grad():
        return _own(_run(_layer_of(layer), tensors, parameters, call), [*tensors, *parameters])


@torch.library.register_fake("distdl::layer_alone", lib=_library)
def _layer_alone_fake(tensors: Tensors, parameters: Tensors, layer: int, call: str) -> Tensors:
    like = tensors[0]
    return [like.new_empty(sizes, dtype=dtype) for sizes, dtype in _described(layer, call, tensors)]


@torch.library.impl(_library, "layer_recorded", "CompositeExplicitAutograd")
def _layer_recorded(
    tensors: Tensors, parameters: Tensors, layer: int, call: str, differentiated: Sequence[bool]
) -> Tensors:
    # A compiler knows nothing of what the graph saves, and uses the memory of inputs and results again; not that of
    # parameters.
    stays = {one.untyped_storage().data_ptr() for one in _layer_of(layer).parameters()}
    given = [
        one.detach() if one.untyped_storage().data_ptr() in stays else one.detach().clone()
        for one in (*tensors, *parameters)
    ]
    with _autograd_again(), torch.enable_grad():
        leaves = [one.requires_grad_(asks) for one, asks in zip(given, differentiated, strict=True)]
        results = _run(_layer_of(layer), leaves[: len(tensors)], leaves[len(tensors) :], call)
    own = [one.detach().clone(memory_format=torch.contiguous_format) for one in results]
    return [*own, _core.holder_of(_Graph(results, leaves))]


@torch.library.register_fake("distdl::layer_recorded", lib=_library)
def _layer_recorded_fake(
    tensors: Tensors, parameters: Tensors, layer: int, call: str, differentiated: Sequence[bool]
) -> Tensors:
    graph = torch.empty(0, dtype=torch.uint8, device="cpu")
    return [*_layer_alone_fake(tensors, parameters, layer, call), graph]


@torch.library.impl(_library, "layer_backward", "CompositeExplicitAutograd")
def _layer_backward(graph: torch.Tensor, gradients: Tensors, sizes: Sequence[int], leaves: str) -> Tensors:
    """The gradients of the leaves that ask for one. All nodes of the graph run, as those of other ranks do."""
    held = cast(_Graph, _core.held_by(graph))
    asking = [one for one in held.leaves if one.requires_grad]
    roots = [
        (one, gradient)
        for one, gradient in zip([one for one in held.results if _has_derivatives(one)], gradients, strict=True)
        if one.requires_grad
    ]
    if roots:
        with _autograd_again():
            torch.autograd.backward(*map(list, zip(*roots, strict=True)), retain_graph=True)
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in asking]
    for one in asking:
        one.grad = None
    return _own([one.to_dense() if one.is_sparse else one for one in found], gradients)


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


def _autograd_again() -> contextlib.AbstractContextManager[None]:
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
