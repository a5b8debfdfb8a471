"""Operations that give the elements of a tensor another shape or order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node
from distdl.models.capture.replay import Run, as_function
from distdl.models.operations.operation import Operation, Sharded, Workers
from distdl.models.operations.table import (
    argument,
    broadcast_spec,
    in_blocks,
    local,
    rule_for,
    same,
    through_layer,
    whole,
)
from distdl.models.rules.pointwise import without
from distdl.parameters.layout import Interval


@rule_for("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel", "atleast_1d", "atleast_2d",
      "atleast_3d", "Flatten", "Unflatten",
      takes="* input size shape start_dim end_dim dim sizes dtype tensors")  # fmt: skip
def reshape(node: Node) -> Operation:
    """Groups of dimensions that have as many elements before and after; of each the first one may be split."""
    shape_before, shape = node.inputs[0].shape, node.outputs[0].shape
    if node.outputs[0].dtype != node.inputs[0].dtype:
        return _view_of_another_type(node)
    spec: list[Sharded | None] = [None] * len(shape_before)
    units: dict[int, int] = {}
    splittable: set[int] = set()
    for before, after in groups(shape_before, shape):
        i = next((d for d in before if shape_before[d] != 1), None)
        o = next((d for d in after if shape[d] != 1), None)
        if i is None or o is None:
            continue
        inner_before = math.prod(shape_before[d] for d in before if d > i)
        inner_after = math.prod(shape[d] for d in after if d > o)
        spec[i] = Sharded(o, Fraction(inner_after, inner_before))
        units[o] = math.lcm(inner_before, inner_after) // inner_after
        splittable.add(o)

    def make(workers: Workers) -> Run:
        size = workers.local_shape
        return lambda x: x.reshape(size)

    kept = {d: unit for d, unit in units.items() if unit > 1}
    make_either = in_blocks(make, lambda x: x.reshape(shape))
    return Operation(shape, (tuple(spec),), make_either, frozenset(splittable), kept)


def _view_of_another_type(node: Node) -> Operation:
    """Any dimension; the last one only where numbers of both types have as many bytes."""
    shape = node.outputs[0].shape
    has_other_sizes = shape != node.inputs[0].shape
    last = [len(shape) - 1] if has_other_sizes else []
    return local(node, [same(len(shape), but=last)], last)


def groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The finest groups of neighboring dimensions with as many elements before as after."""
    if 0 in before or 0 in after:
        return [([*range(len(before))], [*range(len(after))])]
    pairs = []
    i = o = 0
    while i < len(before) or o < len(after):
        ins, outs = [], []
        if i < len(before):
            ins.append(i)
        if o < len(after):
            outs.append(o)
        i, o = i + len(ins), o + len(outs)
        while math.prod(before[d] for d in ins) != math.prod(after[d] for d in outs):
            if math.prod(before[d] for d in ins) < math.prod(after[d] for d in outs):
                ins.append(i)
                i += 1
            else:
                outs.append(o)
                o += 1
        pairs.append((ins, outs))
    return pairs


@rule_for("permute", "transpose", "t", "T", "mT", "swapaxes", "swapdims", "movedim", "moveaxis", "adjoint", "mH")
def permute(node: Node) -> Operation:
    """Each dimension goes along; which one where is read off a tensor with a dimension of each size."""
    n = len(node.inputs[0].shape)
    moved = as_function(node)(torch.empty(tuple(range(2, n + 2)), device="meta"))
    assert isinstance(moved, torch.Tensor)
    order = moved.shape
    spec: list[Sharded | None] = [None] * n
    for o, size in enumerate(order):
        spec[size - 2] = Sharded(o)
    return local(node, [tuple(spec)])


@rule_for("expand", "broadcast_to", takes="* input size implicit")
def expand(node: Node) -> Operation:
    """A block of what is expanded, of the block's size."""
    shape = node.outputs[0].shape

    def make(workers: Workers) -> Run:
        size = workers.local_shape
        return lambda x: x.expand(size)

    spec = broadcast_spec(node.inputs[0], shape)
    return Operation(shape, (spec,), in_blocks(make, lambda x: x.expand(shape)), frozenset(range(len(shape))))


@rule_for("cat", "concat", "concatenate", "hstack", "vstack", "dstack", "column_stack", "row_stack")
def concatenate(node: Node) -> Operation:
    """Any dimension: a worker reads of each tensor what its block of the result shows."""
    shape = node.outputs[0].shape
    if any(len(value.shape) != len(shape) for value in node.inputs):
        return local(node, [whole(value) for value in node.inputs], range(len(shape)))
    dim = {"hstack": min(1, len(shape) - 1), "vstack": 0, "row_stack": 0, "dstack": 2, "column_stack": 1}.get(node.key)
    if dim is None:
        dim = argument(node, 1, "dim", node.kwargs.get("axis", 0)) % len(shape)
    specs, before = [], 0
    for value in node.inputs:
        shown = Sharded(dim, span=partial(_clipped, before, value.shape[dim]))
        specs.append(tuple(shown if d == dim else Sharded(d) for d in range(len(shape))))
        before += value.shape[dim]
    return local(node, specs)


def _clipped(before: int, n: int, start: int, stop: int) -> Interval:
    """The part of a block that is in a tensor of n elements which begins behind others."""
    return min(max(start - before, 0), n), min(max(stop - before, 0), n)


@rule_for("stack")
def stack(node: Node) -> Operation:
    """Any dimension but the new one."""
    shape = node.outputs[0].shape
    dim = argument(node, 1, "dim", 0) % len(shape)
    specs = [tuple(Sharded(d if d < dim else d + 1) for d in range(len(value.shape))) for value in node.inputs]
    return local(node, specs, [dim])


@rule_for("pad", takes="input pad mode value")
def pad(node: Node) -> Operation:
    """Any dimension, filled with a value; otherwise as the layers that pad."""
    x, shape = node.inputs[0], node.outputs[0].shape
    n = len(x.shape)
    widths = list(argument(node, 1, "pad"))
    mode, value = argument(node, 2, "mode", "constant"), argument(node, 3, "value")
    if mode != "constant":
        kind = {"reflect": "ReflectionPad", "replicate": "ReplicationPad", "circular": "CircularPad"}[mode]
        return through_layer(node, getattr(torch.nn, f"{kind}{len(widths) // 2}d")(tuple(widths)))
    before = {n - 1 - i: widths[2 * i] for i in range(len(widths) // 2)}
    spec = tuple(
        Sharded(d, span=partial(_clipped, before[d], x.shape[d]))
        if before.get(d) or x.shape[d] != shape[d]
        else Sharded(d)
        for d in range(n)
    )

    def make(workers: Workers) -> Run:
        own: list[int] = []
        for d, (start, stop) in enumerate(workers.block):
            left = min(max(before.get(d, 0) - start, 0), stop - start)
            right = min(max(stop - before.get(d, 0) - x.shape[d], 0), stop - start - left)
            own = [left, right, *own]
        return lambda x: F.pad(x, own, value=value)

    return Operation(shape, (spec,), in_blocks(make, as_function(node)), frozenset(range(n)))


@rule_for("flip", "fliplr", "flipud")
def flip(node: Node) -> Operation:
    """Any dimension."""
    shape = node.outputs[0].shape
    dims = {"fliplr": {1}, "flipud": {0}}.get(node.key) or _normalized_dims(node, len(shape))
    spec = tuple(Sharded(d, span=partial(_mirrored, n)) if d in dims else Sharded(d) for d, n in enumerate(shape))
    return local(node, [spec])


def _mirrored(n: int, start: int, stop: int) -> Interval:
    return n - stop, n - start


@rule_for("roll", takes="input shifts dims")
def roll(node: Node) -> Operation:
    """Any dimension: a worker reads its block from further on."""
    shape = node.outputs[0].shape
    shifts, dims = argument(node, 1, "shifts"), argument(node, 2, "dims")
    if dims is None or dims == ():
        return local(node, [(None,) * len(shape)], range(len(shape)))
    by = dict.fromkeys(range(len(shape)), 0)
    several = ([n] if isinstance(n, int) else n for n in (shifts, dims))
    for shift, d in zip(*several, strict=True):
        by[d % len(shape)] += shift
    moved = {d: shift % shape[d] for d, shift in by.items() if shape[d] and shift % shape[d]}
    spec = tuple(
        Sharded(d, span=partial(_rolled, n, moved[d]), periodic=True) if d in moved else Sharded(d)
        for d, n in enumerate(shape)
    )

    def make(workers: Workers) -> Run:
        here = [d for d in moved if workers.block[d] == (0, shape[d])]  # where nothing travels
        return lambda x: torch.roll(x, [moved[d] for d in here], here) if here else x

    return Operation(shape, (spec,), in_blocks(make, as_function(node)), frozenset(range(len(shape))))


def _rolled(n: int, shift: int, start: int, stop: int) -> Interval:
    return (0, n) if (start, stop) == (0, n) else (start - shift, stop - shift)


@rule_for("pixel_shuffle", "pixel_unshuffle", "PixelShuffle", "PixelUnshuffle")
def pixel_shuffle(node: Node) -> Operation:
    """Any dimension, in multiples of the factor."""
    shape_before, shape = node.inputs[0].shape, node.outputs[0].shape
    n = len(shape)
    spec, units = list(same(n)), {}
    for d in range(n - 3, n):
        scale = Fraction(shape_before[d], shape[d]) if shape[d] else Fraction(1)
        spec[d] = Sharded(d, scale)
        units[d] = scale.denominator
    return replace(local(node, [tuple(spec)]), units=units)


@rule_for("channel_shuffle", "ChannelShuffle")
def channel_shuffle(node: Node) -> Operation:
    """Anything but channels."""
    n = len(node.outputs[0].shape)
    return local(node, [same(n, but=[1])], [1])


@rule_for("repeat_interleave")
def repeat_interleave(node: Node) -> Operation:
    """Any dimension but the one that is repeated; nothing where all become one."""
    x, *counts = node.inputs
    dim = argument(node, 2, "dim")
    if dim is None:
        return local(node, [whole(value) for value in node.inputs], [0])
    n = len(x.shape)
    return local(node, [same(n, but=[dim % n]), *map(whole, counts)], [dim])


@rule_for("repeat", "tile")
def repeat(node: Node) -> Operation:
    """The dimensions that are not repeated may be split."""
    shape, shape_before = node.outputs[0].shape, node.inputs[0].shape
    first = len(shape) - len(shape_before)
    spec = tuple(Sharded(first + d) if n == shape[first + d] else None for d, n in enumerate(shape_before))
    return local(node, [spec], [d for d in range(len(shape)) if d < first or shape_before[d - first] != shape[d]])


@rule_for("rot90", "cumsum", "cumprod", "sort", "argsort", "topk",
      "softmax", "log_softmax", "softmin", "normalize", "cummax", "cummin", "logcumsumexp", "glu", "diff", "msort",
      "special_softmax", "special_log_softmax", "Softmax", "LogSoftmax", "Softmin", "GLU", "renorm")  # fmt: skip
def along_dims(node: Node) -> Operation:
    """Any dimension but those that it looks along."""
    shape, n = node.outputs[0].shape, len(node.inputs[0].shape)
    looked = _normalized_dims(node, n)
    spec = same(len(shape), but=looked)
    further = [spec] * (len(node.inputs) - 1) if node.key == "diff" else []  # what is put before and behind
    return local(node, [spec, *further], looked)


@rule_for("gradient")
def gradient(node: Node) -> Operation:
    """Any dimension but those along which it differentiates, whose coordinates each worker has."""
    x, *coordinates = node.inputs
    n, dim = len(x.shape), node.kwargs.get("dim")
    dims = range(n) if dim is None else {d % n for d in ([dim] if isinstance(dim, int) else dim)}
    return local(node, [same(n, but=dims), *map(whole, coordinates)], dims)


@rule_for("hsplit", "vsplit", "dsplit", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")
def split(node: Node) -> Operation:
    """All dimensions but one."""
    n = len(node.inputs[0].shape)
    dim = {"hsplit": min(1, n - 1), "vsplit": 0, "dsplit": 2}.get(node.key)
    dim = argument(node, 2, "dim", 0) % n if dim is None else dim
    return local(node, [same(n, but=[dim])], [dim])


@rule_for("trapezoid", "trapz", "cumulative_trapezoid")
def trapezoid(node: Node) -> Operation:
    """Anything but the dimension that is integrated along."""
    y, *others = node.inputs
    n = len(y.shape)
    dim = argument(node, 3, "dim", node.kwargs.get("dim", -1)) % n
    keeps = node.key == "cumulative_trapezoid"
    specs = [without(same(n), dim, keeps)]
    for value in others:
        places = broadcast_spec(value, y.shape) if len(value.shape) > 1 or n == 1 else (None,)
        specs.append(without(places, dim, keeps))
    return local(node, specs, [dim] if keeps else [])


def _normalized_dims(node: Node, n: int) -> set[int]:
    if node.key == "msort":
        return {0}
    if isinstance(node.target, torch.nn.Module):
        return set(range(n)) if node.module.dim is None else {node.module.dim % n}
    defaults = {"glu": -1, "sort": -1, "argsort": -1, "topk": -1, "normalize": 1, "diff": -1}
    position = {"topk": 2, "normalize": 2, "diff": 2, "rot90": 2, "renorm": 2}.get(node.key, 1)
    name = {"flip": "dims", "rot90": "dims"}.get(node.key, "dim")
    dim = node.args[position] if len(node.args) > position else node.kwargs.get(name, defaults.get(node.key))
    if node.key == "flip" and len(node.args) > 2:
        dim = node.args[1:]
    if dim is None or isinstance(dim, bool):
        return set(range(n))
    if node.key == "renorm":
        return set(range(n)) - {dim % n}
    return {d % n for d in (dim if isinstance(dim, list | tuple) else [dim])}
