"""The functions of torch that a model calls: under which name, and which of them become several nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import resolve_name

from distdl.models.recording import Arguments, Function, Options

TAKES_APART = {"chunk", "split", "split_with_sizes", "tensor_split", "unbind"}
"""What becomes a node for each part, so that each of them has its own blocks."""

OPENED = {"gumbel_softmax", "multi_head_attention_forward"}
"""What becomes a call of a layer that does the same, or the nodes of the functions that it calls."""


def opened(function: Function) -> Function:
    """A function of torch.nn.functional that computes even where its first lines would hand the call to a recorder."""
    assert isinstance(function, FunctionType)
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = function.__globals__ | dict.fromkeys(checks, lambda *args: False)
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def layer_of(function: Function, args: Arguments, kwargs: Options) -> tuple[torch.nn.Module, Arguments] | None:
    """The layer of torch.nn that does the same, with the tensors of a call as its parameters, and its arguments."""
    if function is not F.multi_head_attention_forward:
        return None
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    get: Callable[[str], Any] = given.arguments.__getitem__
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
        held.update({name: get(prefix + name) for name, one in held.items() if one is not None})
    names = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
    return layer, (query, key, value, *map(get, names))


def parts_of(
    key: str, args: Arguments, kwargs: Options, parts: Sequence[torch.Tensor]
) -> Iterator[tuple[Function, Arguments]]:
    """What takes each part by itself; its arguments are behind the part."""
    x, *rest = args
    position = 0 if key == "unbind" else 1
    dim = (rest[position] if len(rest) > position else kwargs.get("dim", 0)) % x.dim()
    start = 0
    for i, one in enumerate(parts):
        if key == "unbind":
            yield torch.select, (one, x, dim, i)
        else:
            yield torch.narrow, (one, x, dim, start, one.shape[dim])
            start += one.shape[dim]


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
