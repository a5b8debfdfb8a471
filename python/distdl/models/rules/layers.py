"""Layers that have one of ours: windows, norms by batches, dropout, attention with parameters."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Value
from distdl.models.capture.replay import Run
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, Sharded, Workers
from distdl.models.operations.placement import Blocks
from distdl.models.operations.table import argument, bound, local, options_of, rule_for, same, through_layer, whole
from distdl.models.rules.applied_layer import apply_layer, with_parameters
from distdl.nn.base.by_dimensions import space_of
from distdl.parameters.layout import Interval
from distdl.torch_compat.layers import AnyInstanceNorm

_SPACES = (1, 2, 3)


def _named(*kinds: str) -> list[str]:
    return [f"{kind}{dims}d" for kind in kinds for dims in _SPACES]


@rule_for(*_named("Conv", "ConvTranspose", "MaxPool", "MaxUnpool", "AvgPool", "LPPool", "AdaptiveMaxPool",
              "AdaptiveAvgPool", "ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"),
      "Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d")  # fmt: skip
def window(node: Node) -> Operation:
    """Batch and space, whose blocks are balanced in the result; channels too without parameters.

    A plan may ask for channels of the result, which need other channels of the input, and a part of the parameters.
    """
    x, out = node.arguments[0], node.outputs[0]
    n = len(x.shape)
    space = space_of(node.module)
    channels = 1 if space is None else n - space - 1
    if node.parameters:
        return _convolution(node, channels)

    specs = [same(n)] * len(node.arguments)  # unpooling reads indices, too
    return _layer(node, x.shape, specs, [], functools.partial(_of_result, out.shape, channels))


def _of_result(shape: Sequence[int], channels: int, workers: Workers) -> Blocks:
    """Where a result is: batch and channels as the workers are, balanced blocks in space."""
    blocks = workers.blocks
    block_sizes = Blocks.balanced(blocks.ranks, blocks.splits, shape).block_sizes
    return Blocks(blocks.ranks, blocks.block_sizes[: channels + 1] + block_sizes[channels + 1 :])


def _convolution(node: Node, channels: int) -> Operation:
    x, out, groups = node.arguments[0], node.outputs[0], node.module.groups
    n = len(x.shape)
    shape = (*x.shape[:channels], out.shape[channels], *x.shape[channels + 1 :])
    of_out, own = Sharded(channels), Sharded(channels, Fraction(x.shape[channels], out.shape[channels]))
    of_input = own if groups > 1 else None
    space: InputSpec = (None,) * (n - channels - 1)
    if node.module.transposed:
        of_weight: InputSpec = (own, None, *space) if groups > 1 else (None, of_out, *space)
    else:
        of_weight = (of_out, None, *space)
    specs = [tuple(of_input if d == channels else Sharded(d) for d in range(n)), of_weight, (of_out,)]

    def make(workers: Workers | None) -> Run:
        if workers is None or workers.grid.shape[channels] == 1:
            return apply_layer(node, workers)
        module = copy.copy(node.module)
        if groups > 1:
            module.groups = groups * workers.local_shape[channels] // shape[channels]
        return with_parameters(node, module)

    kept, units = frozenset(range(n)) - {channels}, {channels: shape[channels] // groups} if groups > 1 else {}
    count, places = 1 + len(node.parameters), functools.partial(_of_result, out.shape, channels)
    return Operation(shape, tuple(specs[:count]), make, kept, units, places, if_requested=frozenset([channels]))


@rule_for(*_named("BatchNorm"), "SyncBatchNorm", *_named("InstanceNorm"), "GroupNorm", "LocalResponseNorm")
def norm(node: Node) -> Operation:
    """Anything but channels."""
    n = len(node.inputs[0].shape)
    space = space_of(node.module) if isinstance(node.module, AnyInstanceNorm) else None
    channels = 1 if space is None else n - space - 1
    specs: list[InputSpec] = [same(n, but=[channels])]
    return _layer(node, node.inputs[0].shape, [*specs, *map(whole, node.parameters.values())], [channels])


@rule_for("LayerNorm", "RMSNorm", "layer_norm", "rms_norm",
      takes="input normalized_shape weight bias eps cudnn_enable")  # fmt: skip
def layer_norm(node: Node) -> Operation:
    """Anything but the normalized dimensions."""
    x = node.inputs[0]
    n = len(x.shape)
    is_layer = isinstance(node.target, torch.nn.Module)
    normalized_shape = node.module.normalized_shape if is_layer else argument(node, 1, "normalized_shape")
    normalized = range(n - len(normalized_shape), n)
    specs: list[InputSpec] = [same(n, but=normalized)]
    specs += [whole(value) for value in node.inputs[1:]]
    run: Run | None = None
    if is_layer:
        module, names = node.module, list(node.parameters)
        function: Run = F.layer_norm if node.key == "LayerNorm" else F.rms_norm

        def apply(x: torch.Tensor, *parameters: torch.Tensor) -> object:
            return function(x, module.normalized_shape, **dict(zip(names, parameters, strict=True)), eps=module.eps)

        run = apply
    return local(node, specs, normalized, run)


@rule_for("MultiheadAttention")
def multihead(node: Node) -> Operation:
    """Batch and queries; without a batch, queries. Keys and values are in as many blocks along the sequence."""
    names = ["query", "key", "value", "key_padding_mask", "need_weights", "attn_mask"]
    named = options_of(node, names)
    query, key = named["query"], named["key"]
    n = len(query.shape)
    features = n - 1
    sequence = 0 if n == 2 or not node.module.batch_first else 1
    batch = None if n == 2 else 1 - sequence
    of_keys = Sharded(sequence, span=functools.partial(_in_proportion, query.shape[sequence], key.shape[sequence]))
    tokens = [Sharded(batch) if d == batch else None for d in range(n)]
    of_queries, of_others = (
        tuple(None if d == features else along if d == sequence else tokens[d] for d in range(n))
        for along in (Sharded(sequence), Sharded(sequence) if key.shape == query.shape else of_keys)
    )
    mask = named.get("attn_mask")
    if mask is not None and len(mask.shape) == 3 and batch is not None:
        rows: InputSpec = (Sharded(batch, Fraction(node.module.num_heads)), Sharded(sequence), None)
    else:
        rows = (Sharded(sequence), None) if mask is None or len(mask.shape) == 2 else (None, Sharded(sequence), None)
    padding: InputSpec = (of_others[sequence],) if batch is None else (Sharded(batch), of_others[sequence])
    specs = {"query": of_queries, "key": of_others, "value": of_others, "attn_mask": rows, "key_padding_mask": padding}
    order = [name for name, value in named.items() if isinstance(value, Value)]

    def places(workers: Workers) -> Blocks | list[Blocks]:
        if len(node.outputs) == 1:
            return workers.blocks
        return [workers.blocks, _of_weights(workers.blocks, node.outputs[1].shape, sequence, batch)]

    parameters = map(whole, node.parameters.values())
    return _layer(node, query.shape, [*(specs[name] for name in order), *parameters], [features], places)


def _in_proportion(queries: int, keys: int, start: int, stop: int) -> Interval:
    """The keys of a worker, of which there may be more or fewer than queries."""
    return start * keys // queries, stop * keys // queries


def _of_weights(blocks: Blocks, shape: Sequence[int], sequence: int, batch: int | None) -> Blocks:
    """Where the weights of attention are: rows of queries by columns of all keys, behind a batch and perhaps heads."""
    dims = ([] if batch is None else [batch]) + [None] * (len(shape) - 2 - (batch is not None)) + [sequence, None]
    block_sizes = tuple((n,) if d is None else blocks.block_sizes[d] for d, n in zip(dims, shape, strict=True))
    return Blocks(blocks.ranks_along(dims, tuple(map(len, block_sizes))), block_sizes)


def _layer(
    node: Node,
    shape: Sequence[int],
    specs: Sequence[InputSpec],
    whole_dims: Sequence[int],
    places: Callable[[Workers], Blocks | list[Blocks]] | None = None,
) -> Operation:
    kept = frozenset(range(len(shape))) - set(whole_dims)
    return Operation(tuple(shape), tuple(specs), lambda workers: apply_layer(node, workers), kept, places=places)


# Functions that do the same as a layer of torch.nn

_Make = Callable[..., torch.nn.Module]


def _in_space(function: str, layer: str) -> Mapping[str, _Make]:
    """Layers that do the same as functions in one, two and three dimensions, by the names of the functions."""
    return {function.format(dims): getattr(torch.nn, f"{layer}{dims}d") for dims in _SPACES}


_ADAPTIVE = {
    **_in_space("adaptive_avg_pool{}d", "AdaptiveAvgPool"),
    **_in_space("adaptive_max_pool{}d", "AdaptiveMaxPool"),
    **_in_space("adaptive_max_pool{}d_with_indices", "AdaptiveMaxPool"),
}


def _indices(node: Node) -> dict[str, bool]:
    """The option of layers that return indices as well."""
    return {"return_indices": True} if len(node.outputs) > 1 else {}


@rule_for(*_ADAPTIVE, takes="input output_size return_indices")
def adaptive_pool(node: Node) -> Operation:
    """The rule of the layer of the same name."""
    return through_layer(node, _ADAPTIVE[node.key](argument(node, 1, "output_size"), **_indices(node)))


_OF_AVERAGE = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_OF_LARGEST = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_OF_NORM = ("input", "norm_type", "kernel_size", "stride", "ceil_mode")
_POOLS = {
    key: (make, names)
    for several, names in (
        (_in_space("avg_pool{}d", "AvgPool"), _OF_AVERAGE),
        (_in_space("max_pool{}d", "MaxPool"), _OF_LARGEST),
        (_in_space("max_pool{}d_with_indices", "MaxPool"), _OF_LARGEST),
        (_in_space("lp_pool{}d", "LPPool"), _OF_NORM),
    )
    for key, make in several.items()
}
_UNPOOLS = _in_space("max_unpool{}d", "MaxUnpool")


@rule_for(*_POOLS, takes=" ".join(dict.fromkeys(_OF_AVERAGE + _OF_LARGEST + _OF_NORM)))
def pool(node: Node) -> Operation:
    """The rule of the layer of the same name; most of these functions have no signature."""
    make, names = _POOLS[node.key]
    options = options_of(node, names, but=["input", "return_indices"])
    if options.get("stride") in ([], ()):  # the default of torch's own functions
        del options["stride"]
    return through_layer(node, make(**options, **_indices(node)))


@rule_for(*_UNPOOLS, takes="input indices kernel_size stride padding output_size")
def unpool(node: Node) -> Operation:
    """The rule of the layer of the same name."""
    options = bound(node)
    args = tuple(options.pop(name) for name in ("input", "indices", "output_size"))
    return through_layer(node, _UNPOOLS[node.key](**options), args=args)


@rule_for("interpolate",
      takes="input size scale_factor mode align_corners recompute_scale_factor antialias")  # fmt: skip
def interpolate(node: Node) -> Operation:
    """The rule of torch.nn.Upsample."""
    names = ["input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias"]
    options = options_of(node, names, but=["input"])
    if options.pop("antialias", False):  # batch and channels
        return local(node, [(Sharded(0), Sharded(1), None, None)], [2, 3])
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return through_layer(node, torch.nn.Upsample(**options))


_CONVOLUTIONS, _TRANSPOSED = _in_space("conv{}d", "Conv"), _in_space("conv_transpose{}d", "ConvTranspose")


@rule_for(*_CONVOLUTIONS, *_TRANSPOSED, takes="input weight bias stride padding output_padding dilation groups")
def convolution(node: Node) -> Operation:
    """The rule of the layer, with parameters passed as arguments."""
    names = ["input", "weight", "bias", "stride", "padding"]
    is_transposed = node.key in _TRANSPOSED
    names += ["output_padding", "groups", "dilation"] if is_transposed else ["dilation", "groups"]
    options = options_of(node, names, but=["input"])
    weight, bias = options.pop("weight"), options.pop("bias", None)
    channels = weight.shape[1] * options.get("groups", 1), weight.shape[0]
    make = (_TRANSPOSED if is_transposed else _CONVOLUTIONS)[node.key]
    made = channels[::-1] if is_transposed else channels
    module = make(*made, weight.shape[2:], **options, bias=bias is not None, device="meta")
    parameters: dict[str, Value] = {"weight": weight} | ({} if bias is None else {"bias": bias})
    return through_layer(node, module, parameters)


def _with_one_parameter(node: Node, x: Value, name: str) -> Operation:
    """A norm with a weight or a bias alone: that without, and what is done to its result."""
    if node.inputs[0] is not x:
        raise NoRuleError(f"{node.key} with arguments by name in another order")
    options = {key: value for key, value in bound(node).items() if key not in ("input", name)}
    operation = functional_norm(replace(node, args=(x,), kwargs=options))
    shape = [-1 if d == 1 else 1 for d in range(len(x.shape))]
    combine: Run = torch.mul if name == "weight" else torch.add

    def make(workers: Workers | None) -> Run:
        normalized = operation.make(workers)
        return lambda x, parameter: combine(normalized(x), parameter.reshape(shape))

    places = operation.places or (lambda workers: workers.blocks)
    return replace(operation, input_specs=(*operation.input_specs, (None,)), make=make, places=places)


@rule_for("batch_norm", "instance_norm", "group_norm", "local_response_norm",
      takes="input running_mean running_var weight bias training use_input_stats momentum eps num_groups size alpha "
            "beta k cudnn_enabled")  # fmt: skip
def functional_norm(node: Node) -> Operation:
    """The rule of the layers, with parameters as arguments. With statistics as arguments, any dimension may be cut."""
    options = bound(node)
    x = options.pop("input")
    tensors = {name: options.pop(name, None) for name in ("running_mean", "running_var", "weight", "bias")}
    of_input = options.pop("use_input_stats" if node.key == "instance_norm" else "training", True)
    if not of_input:
        specs = [same(len(x.shape))]
        channels: list[InputSpec] = [(Sharded(1),) for _ in node.inputs[1:]]
        return local(node, [*specs, *channels])
    if tensors["running_mean"] is not None:
        raise NoRuleError(f"{node.key} that writes running statistics as no layer of torch.nn does")
    parameters = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if len(parameters) == 1:
        return _with_one_parameter(node, x, *parameters)
    make: _Make
    if node.key == "local_response_norm":
        return through_layer(node, torch.nn.LocalResponseNorm(**options))
    if node.key == "group_norm":
        make = functools.partial(torch.nn.GroupNorm, options["num_groups"], x.shape[1])
        options_of_kind: dict[str, object] = {}
    else:
        space = max(1, len(x.shape) - 2)
        if space not in _SPACES:
            raise NoRuleError(f"{node.key} of {len(x.shape)} dimensions")
        kind = "BatchNorm" if node.key == "batch_norm" else "InstanceNorm"
        make = functools.partial(getattr(torch.nn, f"{kind}{space}d"), x.shape[1])
        options_of_kind = {"track_running_stats": False}
    module = make(affine=bool(parameters), eps=options["eps"], device="meta", dtype=x.dtype, **options_of_kind)
    return through_layer(node, module, parameters)
