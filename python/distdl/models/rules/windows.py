"""Convolutions, pooling, padding and resizing: layers of torch.nn, and functions that do the same."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import torch
import torch.nn.functional as F

from distdl import _core
from distdl.models.capture.recording import Node, Run, Value
from distdl.models.operations.operation import BoxFunction, InputSpec, Operation, Sharded, Workers
from distdl.models.operations.placement import Blocks
from distdl.models.operations.table import argument, bound, local, options_of, rule_for, same, through_layer
from distdl.models.rules.applied_layer import apply_layer, layer_operation, with_parameters
from distdl.nn.base.by_dimensions import space_of
from distdl.nn.kernels.convolution import conv3d

_SPACES = (1, 2, 3)


def _named(*kinds: str) -> list[str]:
    return [f"{kind}{dims}d" for kind in kinds for dims in _SPACES]


@rule_for(*_named("Conv", "ConvTranspose", "MaxPool", "MaxUnpool", "AvgPool", "LPPool", "AdaptiveMaxPool",
              "AdaptiveAvgPool", "ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"),
          "Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d")  # fmt: skip
def window(node: Node) -> Operation:
    """Batch and space, with balanced blocks of the result; channels too without parameters.

    A plan may request channels of the result, which need other channels of the input, and a part of the parameters.
    """
    x, out = node.arguments[0], node.outputs[0]
    n = len(x.shape)
    space = space_of(node.module)
    channels = 1 if space is None else n - space - 1
    if node.parameters:
        return _convolution(node, channels)

    specs = [same(n)] * len(node.arguments)  # unpooling reads indices, too
    return layer_operation(node, x.shape, specs, [], functools.partial(_of_result, out.shape, channels))


def _of_result(shape: Sequence[int], channels: int, workers: Workers) -> Blocks:
    """The blocks of a result: the workers' batch and channels, and balanced blocks in space."""
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
    count, placements = 1 + len(node.parameters), functools.partial(_of_result, out.shape, channels)
    box, features = _of_boxes(node.module, channels), frozenset([channels])
    return Operation(shape, tuple(specs[:count]), make, kept, units, placements, if_requested=features, box=box)


def _of_boxes(module: torch.nn.Module, channels: int) -> BoxFunction | None:
    """The function of a convolution on boxes; None if it has another form, or its padding wraps."""
    mode = _MODES_ON_BOXES.get(module.padding_mode)
    if module.transposed or mode is None:
        return None
    windows = {}
    for d, (kernel, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True)
    ):
        total = dilation * (kernel - 1) if module.padding == "same" else 0
        sides = (total // 2, total - total // 2) if isinstance(module.padding, str) else (module.padding[d],) * 2
        windows[channels + 1 + d] = _core.Window(kernel, stride, sides, dilation)
    function = _ON_BOXES[len(windows)]

    def run(
        padding: Sequence[int], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return function(x, weight, bias, module.stride, padding, module.dilation, module.groups)

    return BoxFunction(run, windows, mode)


_MODES_ON_BOXES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate"}
_ON_BOXES: Mapping[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: conv3d}


_Make = Callable[..., torch.nn.Module]


def _in_space(function: str, layer: str) -> Mapping[str, _Make]:
    """Layers in one, two and three dimensions, by the names of functions that compute the same."""
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
CONVOLUTIONS = {
    f"{kind}{dims}d": dims for kind in ("conv", "conv_transpose", "Conv", "ConvTranspose") for dims in _SPACES
}
"""The functions and layers that convolve, with their numbers of dimensions in space."""
TRANSPOSED = {key for key in CONVOLUTIONS if "ranspose" in key}


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
