"""Layers that have one of ours: windows, norms by batches, dropout, attention with parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from distdl.models.capture import Node, Value
from distdl.models.layer import applied
from distdl.models.operation import Along, NoRuleError, Operation, Reads, Run, Workers
from distdl.models.placement import Blocks
from distdl.models.table import RULES, argument, local, rule, same, whole

_SPACES = (1, 2, 3)


def _named(*kinds: str) -> list[str]:
    return [f"{kind}{dims}d" for kind in kinds for dims in _SPACES]


@rule(*_named("Conv", "ConvTranspose", "MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool",
              "ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"),
      "Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d")  # fmt: skip
def window(node: Node) -> Operation:
    """Batch and space, whose blocks are balanced in the result; channels too without parameters."""
    x, out = node.arguments[0], node.outputs[0]
    n = len(x.shape)
    space = _space_of(node)
    channels = n - space - 1
    whole_dims = [channels] if node.parameters else []
    reads: list[Reads] = [tuple(None if d in whole_dims else Along(d) for d in range(n))]
    reads += [whole(one) for one in node.parameters.values()]

    def places(workers: Workers) -> Blocks | list[Blocks]:
        blocks = workers.blocks
        cuts = list(Blocks.balanced(blocks.ranks, blocks.splits, out.shape).cuts)
        cuts[: channels + 1] = [
            *blocks.cuts[:channels],
            (out.shape[channels],) if whole_dims else blocks.cuts[channels],
        ]
        return Blocks(blocks.ranks, tuple(cuts))

    return _layer(node, x.shape, reads, whole_dims, places)


def _space_of(node: Node) -> int:
    name = type(node.target).__name__
    return int(name[-2]) if name[-1] == "d" and name[-2].isdigit() else len(node.inputs[0].shape) - 2


@rule(*_named("BatchNorm"), "SyncBatchNorm", *_named("InstanceNorm"), "GroupNorm", "LocalResponseNorm")
def norm(node: Node) -> Operation:
    """Anything but channels."""
    n = len(node.inputs[0].shape)
    channels = 1
    if type(node.target).__name__.startswith("InstanceNorm"):
        channels = n - int(type(node.target).__name__[-2]) - 1
    reads: list[Reads] = [tuple(None if d == channels else Along(d) for d in range(n))]
    return _layer(node, node.inputs[0].shape, [*reads, *map(whole, node.parameters.values())], [channels])


@rule("Dropout", *_named("Dropout"), "AlphaDropout", "FeatureAlphaDropout")
def dropout(node: Node) -> Operation:
    """Any dimension: the mask is that of the whole tensor."""
    shape = node.inputs[0].shape
    return _layer(node, shape, [same(len(shape))], [])


@rule("LayerNorm", "RMSNorm", "layer_norm", "rms_norm")
def layer_norm(node: Node) -> Operation:
    """Anything but the normalized dimensions."""
    x = node.inputs[0]
    n = len(x.shape)
    is_layer = isinstance(node.target, torch.nn.Module)
    given = node.module.normalized_shape if is_layer else argument(node, 1, "normalized_shape")
    normalized = range(n - len(given), n)
    reads: list[Reads] = [tuple(None if d in normalized else Along(d) for d in range(n))]
    reads += [whole(one) for one in node.inputs[1:]]
    run: Run | None = None
    if is_layer:
        module, names = node.module, list(node.parameters)
        function: Run = F.layer_norm if node.key == "LayerNorm" else F.rms_norm

        def apply(x: torch.Tensor, *parameters: torch.Tensor) -> object:
            return function(x, module.normalized_shape, **dict(zip(names, parameters, strict=True)), eps=module.eps)

        run = apply
    return local(node, reads, normalized, run)


@rule("MultiheadAttention")
def multihead(node: Node) -> Operation:
    """Batch and sequence; without a batch, the sequence."""
    query = node.arguments[0]
    n = len(query.shape)
    features = n - 1
    reads: list[Reads] = []
    for i, one in enumerate(node.arguments):
        if i > 2:
            raise NoRuleError("MultiheadAttention with masks")
        if one.shape != query.shape:
            raise NoRuleError("MultiheadAttention with other keys than queries")
        reads.append(tuple(None if d == features else Along(d) for d in range(n)))
    if node.kwargs.get("need_weights", True) and len(node.outputs) > 1:
        raise NoRuleError("MultiheadAttention with need_weights=True")
    return _layer(node, query.shape, [*reads, *map(whole, node.parameters.values())], [features])


def _layer(
    node: Node,
    shape: Sequence[int],
    reads: Sequence[Reads],
    whole_dims: Sequence[int],
    places: Callable[[Workers], Blocks | list[Blocks]] | None = None,
) -> Operation:
    kept = frozenset(range(len(shape))) - set(whole_dims)
    return Operation(tuple(shape), tuple(reads), lambda workers: applied(node, workers), kept, places=places)


# Functions that do the same as a layer of torch.nn


def _as_layer(kind: type[torch.nn.Module]) -> Callable[[Node], Operation]:
    """The rule of a function, from that of the layer."""
    parameters = [*inspect.signature(kind).parameters]

    def find(node: Node) -> Operation:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
        bound.apply_defaults()
        options = dict(bound.arguments)
        options.pop("input")
        training = options.pop("training", True)
        options = {k: v for k, v in options.items() if k in parameters}
        return _through(node, kind(**options).train(training))

    return find


for _dims in _SPACES:
    for _function, _kind in (("adaptive_avg_pool", "AdaptiveAvgPool"), ("adaptive_max_pool", "AdaptiveMaxPool")):
        rule(f"{_function}{_dims}d")(_as_layer(getattr(torch.nn, f"{_kind}{_dims}d")))
rule("dropout")(_as_layer(torch.nn.Dropout))


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d")
def pool(node: Node) -> Operation:
    """As the layer of the same name; these functions have no signature."""
    names = ["kernel_size", "stride", "padding"]
    is_max = node.key.startswith("max")
    names += ["dilation", "ceil_mode", "return_indices"] if is_max else [
        "ceil_mode", "count_include_pad", "divisor_override"]  # fmt: skip
    options = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    if is_max and "ceil_mode" not in node.kwargs and len(node.args) > 5:
        options["ceil_mode"], options["return_indices"] = node.args[5], False
    kind = getattr(torch.nn, ("MaxPool" if is_max else "AvgPool") + node.key[-2:])
    return _through(node, kind(**options))


@rule("interpolate")
def interpolate(node: Node) -> Operation:
    """As torch.nn.Upsample."""
    names = ["size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias"]
    options = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    options.pop("input", None)
    if options.pop("antialias", False):
        raise NoRuleError("interpolate with antialias=True")
    return _through(node, torch.nn.Upsample(**options))


@rule("pad")
def pad(node: Node) -> Operation:
    """As the layers that pad; dimensions without padding may be split in any case."""
    x = node.inputs[0]
    n = len(x.shape)
    sides = list(node.args[1] if len(node.args) > 1 else node.kwargs["pad"])
    padded = {n - 1 - i // 2 for i, width in enumerate(sides) if width}
    if not padded:
        return local(node, [same(n)])
    return local(node, [tuple(None if d in padded else Along(d) for d in range(n))], padded)


def _through(node: Node, module: torch.nn.Module, parameters: Mapping[str, Value] | None = None) -> Operation:
    """The operation of a function, by that of the layer that does the same with its first argument."""
    key = type(module).__name__
    first = tuple(node.arguments[:1])
    return RULES[key](replace(node, target=module, key=key, args=first, kwargs={}, parameters=parameters or {}))


@rule("conv1d", "conv2d", "conv3d")
def convolution(node: Node) -> Operation:
    """As the layer, with the parameters that are given."""
    names = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    options = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    options.pop("input")
    weight, bias = options.pop("weight"), options.pop("bias", None)
    groups = options.get("groups", 1)
    kind = getattr(torch.nn, f"Conv{node.key[-2:]}")
    module = kind(
        weight.shape[1] * groups, weight.shape[0], weight.shape[2:], **options, bias=bias is not None, device="meta"
    )
    given: dict[str, Value] = {"weight": weight} | ({} if bias is None else {"bias": bias})
    return _through(node, module, given)
