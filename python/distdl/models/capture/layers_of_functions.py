"""Functions of torch that are recorded as a layer of torch.nn."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Arguments, Function, Options


def layer_of(function: Function, args: Arguments, kwargs: Options) -> tuple[torch.nn.Module, Arguments] | None:
    """The layer of torch.nn that computes the same, with a call's tensors as parameters and buffers, and its inputs."""
    make = _LAYERS.get(function)
    if make is None:
        return None
    call = inspect.signature(function).bind(*args, **kwargs)
    call.apply_defaults()
    asked: set[str] = set()

    def get(name: str) -> object:
        asked.add(name)
        return call.arguments[name]

    layer = make(get)
    unused = [parameter for name, parameter in call.signature.parameters.items() if name not in asked]
    is_other = any(
        parameter.default is not parameter.empty and call.arguments[parameter.name] is not parameter.default
        for parameter in unused
    )
    return None if is_other else layer


_Get = Callable[[str], Any]  # an argument of a call, by its name


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
    """A norm that writes running statistics; None if it writes none."""
    x, buffers = get("input"), {name: get(name) for name in ("running_mean", "running_var")}
    parameters = {name: get(name) for name in ("weight", "bias")}
    has_a_layer = 2 < x.dim() <= 5 or (kind == "BatchNorm" and x.dim() == 2)
    affine = parameters["weight"] is not None
    if not get(uses_statistics_of_input) or None in buffers.values() or not has_a_layer:
        return None
    if affine != (parameters["bias"] is not None) and (kind == "InstanceNorm" or not affine):
        return None
    make = getattr(torch.nn, f"{kind}{max(1, x.dim() - 2)}d")
    layer = make(x.shape[1], get("eps"), get("momentum"), affine=False, track_running_stats=False, device="meta")
    layer.affine, layer.track_running_stats = affine, True  # without first values, which take long to make
    vars(layer)["_parameters"].update(parameters)  # assigning an attribute would take a Parameter
    vars(layer)["_buffers"].update(buffers, num_batches_tracked=None)
    return layer, (x,)


_LAYERS: dict[Function, Callable[[_Get], tuple[torch.nn.Module, Arguments] | None]] = {
    F.multi_head_attention_forward: _attention,
    F.batch_norm: functools.partial(_tracking_norm, "BatchNorm", "training"),
    F.instance_norm: functools.partial(_tracking_norm, "InstanceNorm", "use_input_stats"),
}
