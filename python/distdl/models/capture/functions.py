"""The functions of torch that a model calls: under which name, and which of them become several nodes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import resolve_name

from distdl.models.capture.recording import Arguments, Function, Options
from distdl.torch_compat.layers import NormBase

SPLITTING = {"chunk", "split", "split_with_sizes", "tensor_split", "unbind"}
"""What becomes a node for each part, so that each of them has its own blocks."""

SHAPED_AS = {"expand_as": torch.Tensor.expand, "view_as": torch.Tensor.view, "reshape_as": torch.Tensor.reshape}
TYPED_AS = {"to", "type_as"}
"""What looks at the shape, or at the dtype and the device, of a tensor that no element comes from."""

INLINED = {"gumbel_softmax", "multi_head_attention_forward"}
"""What becomes a call of a layer that does the same, or the nodes of the functions that it calls."""


def inlined(function: Function) -> Function:
    """A function of torch.nn.functional that computes even where its first lines would hand the call to a recorder."""
    assert isinstance(function, FunctionType)
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = function.__globals__ | dict.fromkeys(checks, lambda *args: False)
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def with_lost_arguments(function: Function, args: Arguments, kwargs: Options) -> dict[str, object]:
    """The named arguments of a call, and those that a function of torch does not hand on to a recorder.

    ``torch.nn.functional.l1_loss`` forgets its weight there, which still stands in the frame of the call.
    """
    named = dict(kwargs)
    if not isinstance(function, FunctionType) or function.__module__ != F.__name__:
        return named
    frame = sys._getframe()
    for _ in range(_FRAMES):
        if frame.f_back is None:
            return named
        frame = frame.f_back
        if frame.f_code is function.__code__:
            names = [*inspect.signature(function).parameters.items()][len(args) :]
            values = {name: frame.f_locals[name] for name, _ in names if name not in named and name in frame.f_locals}
            return named | {
                name: values[name] for name, own in names if name in values and values[name] is not own.default
            }
    return named


_FRAMES = 4
"""Between a function of torch and what it hands its call to are at most as many calls."""


def without_template(key: str, args: Arguments, kwargs: Options) -> tuple[Function, Arguments, Options] | None:
    """The same call without the tensor that only says how the result looks, which nothing needs to travel for."""
    other = args[1] if len(args) > 1 else kwargs.get("other")
    if not isinstance(other, torch.Tensor) or key not in SHAPED_AS.keys() | TYPED_AS:
        return None
    x, rest = args[0], args[2:]
    kwargs = {name: value for name, value in kwargs.items() if name != "other"}
    if key in SHAPED_AS:
        return SHAPED_AS[key], (x, other.shape, *rest), kwargs
    where = () if other.device == x.device else (other.device,)
    return torch.Tensor.to, (x, *where, other.dtype, *rest), kwargs


def with_values(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Replace the values of a tensor, and keep its derivative, as writing into it without gradients does."""
    x = x.clone()
    with torch.no_grad():
        return x.copy_(values)


@contextlib.contextmanager
def without_a_count(module: torch.nn.Module) -> Iterator[None]:
    """Let a norm that averages all batches alike not look at how many there were, which changes no shape."""
    counts = isinstance(module, NormBase) and module.momentum is None
    if counts:
        module.momentum = 0.1
    try:
        yield
    finally:
        if counts:
            module.momentum = None


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[torch.Tensor, ...]:
    """``torch.meshgrid`` by functions that have a single result each."""
    vectors = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else list(tensors)
    swapped = indexing == "xy" and len(vectors) > 1
    if swapped:
        vectors[:2] = vectors[1::-1]
    shape = [vector.numel() for vector in vectors]
    single = [1] * len(vectors)
    grids = [x.reshape([*single[:d], -1, *single[d + 1 :]]).expand(shape) for d, x in enumerate(vectors)]
    if swapped:
        grids[:2] = grids[1::-1]
    return tuple(grids)


def broadcast_tensors(*tensors: Any) -> tuple[torch.Tensor, ...]:
    """``torch.broadcast_tensors`` by functions that have a single result each."""
    operands = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in operands))
    return tuple(tensor.expand(shape) for tensor in operands)


def gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """The loss of torch.nn.functional, except that negative variances give nan in place of an error."""
    if isinstance(var, float):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = input.new_full((), var).expand(input.shape)
    elif var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    others = [m for n, m in zip(input.shape, var.shape, strict=False) if n != m]
    if var.dim() != input.dim() or others not in ([], [1]):
        raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    var = var.clone()  # in the order of memory in which it was
    with torch.no_grad():
        var.masked_fill_(var < 0, torch.nan).clamp_(min=eps)
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """``torch.cov`` without its look at values of weights, of which none may be negative."""
    x = input if input.dim() > 1 else input.reshape(1, -1)
    weightings = [weighting for weighting in (fweights, aweights) if weighting is not None]
    count: float | torch.Tensor = x.shape[1]
    if not weightings:
        centered = weighted = x - x.mean(1, keepdim=True)
        rest: float | torch.Tensor = max(0, count - correction)
    else:
        weights = math.prod(weightings[1:], start=weightings[0])
        count = weights.sum()
        centered = x - (x * weights).sum(1, keepdim=True) / count
        weighted = centered * weights
        lost = 1.0 if aweights is None else (weights * aweights).sum() / count
        rest = (count - correction * lost).clamp(min=0)
    return (centered @ weighted.mT.conj() / rest).squeeze()


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """``torch.corrcoef`` by :func:`cov`."""
    matrix = cov(input)
    if matrix.dim() == 0:
        return matrix / matrix
    deviations = matrix.diagonal().real.sqrt()
    matrix = matrix / deviations[:, None] / deviations
    if matrix.is_complex():
        return torch.complex(matrix.real.clip(-1, 1), matrix.imag.clip(-1, 1))
    return matrix.clip(-1, 1)


DECOMPOSITIONS: dict[str, Function] = {
    "cov": cov,
    "corrcoef": corrcoef,
    "meshgrid": meshgrid,
    "broadcast_tensors": broadcast_tensors,
    "gaussian_nll_loss": gaussian_nll_loss,
}
"""What is recorded for functions that have several results of different tensors, or look at values."""


def layer_of(function: Function, args: Arguments, kwargs: Options) -> tuple[torch.nn.Module, Arguments] | None:
    """The layer of torch.nn that does the same, with a call's tensors as parameters and buffers, and its arguments."""
    make = _LAYERS.get(function)
    if make is None:
        return None
    call = inspect.signature(function).bind(*args, **kwargs)
    call.apply_defaults()
    asked: set[str] = set()

    def get(name: str) -> Any:
        asked.add(name)
        return call.arguments[name]

    layer = make(get)
    unused = [parameter for name, parameter in call.signature.parameters.items() if name not in asked]
    is_other = any(
        parameter.default is not parameter.empty and call.arguments[parameter.name] is not parameter.default
        for parameter in unused
    )
    return None if is_other else layer


_Get = Callable[[str], Any]
"""Gives an argument of a call by its name."""


def _attention(get: _Get) -> tuple[torch.nn.Module, Arguments] | None:
    query, key, value, has_bias = get("query"), get("key"), get("value"), get("in_proj_bias") is not None
    layer = torch.nn.MultiheadAttention(
        get("embed_dim_to_check"), get("num_heads"), get("dropout_p"), bias=has_bias,
        add_bias_kv=get("bias_k") is not None, add_zero_attn=get("add_zero_attn"), kdim=key.shape[-1],
        vdim=value.shape[-1], device="meta",
    ).train(get("training"))  # fmt: skip
    is_static = get("static_k") is not None or get("static_v") is not None
    has_layout = get("use_separate_proj_weight") == (layer.in_proj_weight is None)
    if is_static or not has_layout or has_bias != (get("out_proj_bias") is not None):
        return None
    for module, prefix in ((layer, ""), (layer.out_proj, "out_proj_")):
        held = vars(module)["_parameters"]  # assigning an attribute would take a Parameter
        held.update({name: get(prefix + name) for name, parameter in held.items() if parameter is not None})
    names = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
    return layer, (query, key, value, *map(get, names))


def _tracking_norm(kind: str, uses_statistics_of_input: str, get: _Get) -> tuple[torch.nn.Module, Arguments] | None:
    """A norm that writes running statistics; None where there are none, or nothing is written into them."""
    x, buffers = get("input"), {name: get(name) for name in ("running_mean", "running_var")}
    parameters = {name: get(name) for name in ("weight", "bias")}
    has_a_layer = 2 < x.dim() <= 5 or (kind == "BatchNorm" and x.dim() == 2)
    affine = parameters["weight"] is not None
    if not get(uses_statistics_of_input) or None in buffers.values() or not has_a_layer:
        return None
    if affine != (parameters["bias"] is not None) and (kind == "InstanceNorm" or not affine):
        return None
    make = getattr(torch.nn, f"{kind}{max(1, x.dim() - 2)}d")
    layer = make(x.shape[1], get("eps"), get("momentum"), affine, track_running_stats=True, device="meta")
    vars(layer)["_parameters"].update(parameters)  # assigning an attribute would take a Parameter
    vars(layer)["_buffers"].update(buffers, num_batches_tracked=None)
    return layer, (x,)


_LAYERS: dict[Function, Callable[[_Get], tuple[torch.nn.Module, Arguments] | None]] = {
    F.multi_head_attention_forward: _attention,
    F.batch_norm: functools.partial(_tracking_norm, "BatchNorm", "training"),
    F.instance_norm: functools.partial(_tracking_norm, "InstanceNorm", "use_input_stats"),
}


def split_calls(
    key: str, args: Arguments, kwargs: Options, parts: Sequence[torch.Tensor]
) -> Iterator[tuple[Function, Arguments]]:
    """For each part of a split tensor, a function that takes it alone, and the arguments after the part."""
    x, *rest = args
    if others := kwargs.keys() - _OF_PARTS:
        raise NotImplementedError(f"{key} with {', '.join(sorted(others))}")
    position = 0 if key == "unbind" else 1
    dim = (rest[position] if len(rest) > position else kwargs.get("dim", 0)) % x.dim()
    start = 0
    for i, part in enumerate(parts):
        if key == "unbind":
            yield torch.select, (part, x, dim, i)
        else:
            yield torch.narrow, (part, x, dim, start, part.shape[dim])
            start += part.shape[dim]


_OF_PARTS = {
    "chunks", "dim", "indices", "indices_or_sections", "sections", "split_size", "split_size_or_sections",
    "split_sizes", "tensor_indices_or_sections",
}  # fmt: skip
"""The arguments of what takes a tensor apart."""


def key_of(function: Function) -> str:
    """The name under which rules know a function: that of ``torch.add`` for ``Tensor.add_``, ``+`` and ``+=`` too."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return str(function.__self__.__name__)  # type: ignore[attr-defined]
    if name.startswith("__") and name.endswith("__"):
        plain = name.strip("_")
        if plain in ("rsub", "rdiv", "rtruediv", "rfloordiv", "rpow", "rmatmul", "rmod"):
            return plain
        for prefix in ("i", "r"):
            if plain.startswith(prefix) and plain[1:] in _OPERATORS:
                return plain[1:]
        return plain
    if name.endswith("_") and not name.startswith("_"):
        name = name.rstrip("_") if name != "requires_grad_" else name
    return name or str(resolve_name(function))


_OPERATORS = {"add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or", "xor", "matmul", "div", "lshift",
              "rshift"}  # fmt: skip
