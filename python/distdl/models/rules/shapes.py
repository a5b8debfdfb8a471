"""Other shapes and orders of dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch

from distdl.models.capture.memory_order import strides_in
from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import NoRuleError, Operation, Sharded, Workers
from distdl.models.operations.table import argument, broadcast_spec, in_blocks, local, rule_for, same, whole


@rule_for("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel", "atleast_1d", "atleast_2d",
          "atleast_3d", "Flatten", "Unflatten",
          takes="* input size shape start_dim end_dim dim sizes dtype tensors")  # fmt: skip
def reshape(node: Node) -> Operation:
    """The first of each group of dimensions that have as many elements before and after."""
    shape_before, shape = node.inputs[0].shape, node.outputs[0].shape
    if node.outputs[0].dtype != node.inputs[0].dtype:
        last = [] if shape == shape_before else [len(shape) - 1]  # numbers of other sizes
        return local(node, [same(len(shape), but=last)], last)
    spec: list[Sharded | None] = [None] * len(shape_before)
    units: dict[int, int] = {}
    splittable: set[int] = set()
    for before, after in groups(shape_before, shape):
        i = next((d for d in before if shape_before[d] != 1), None)
        o = next((d for d in after if shape[d] != 1), None)
        if i is None or o is None or 0 in shape:
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


def groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The finest groups of neighboring dimensions with as many elements before as after."""
    if 0 in before or 0 in after:
        return [([*range(len(before))], [*range(len(after))])]
    pairs = []
    i = o = 0
    while i < len(before) or o < len(after):
        ins, outs = [*range(len(before))[i : i + 1]], [*range(len(after))[o : o + 1]]
        while (n := math.prod(before[d] for d in ins)) != (m := math.prod(after[d] for d in outs)):
            if n < m:
                ins.append(i + len(ins))
            else:
                outs.append(o + len(outs))
        i, o = i + len(ins), o + len(outs)
        pairs.append((ins, outs))
    return pairs


@rule_for("permute", "transpose", "t", "T", "mT", "swapaxes", "swapdims", "movedim", "moveaxis", "adjoint", "mH")
def permute(node: Node) -> Operation:
    """Any dimension. A tensor with dimensions of different sizes shows their order in the result."""
    n = len(node.inputs[0].shape)
    moved = node.as_function()(torch.empty(tuple(range(2, n + 2)), device="meta"))
    assert isinstance(moved, torch.Tensor)
    order = moved.shape
    spec: list[Sharded | None] = [None] * n
    for o, size in enumerate(order):
        spec[size - 2] = Sharded(o)
    return local(node, [tuple(spec)])


@rule_for("as_strided", takes="input size stride storage_offset")
def as_strided(node: Node) -> Operation:
    """The dimensions that stay, if no step along another one changes their indices."""
    x, shape, strides = node.inputs[0], node.outputs[0].shape, tuple(argument(node, 2, "stride"))
    order = sorted(range(len(x.shape)), key=lambda d: (-x.strides[d], d))
    if strides_in(order, x.shape) != x.strides or argument(node, 3, "storage_offset"):
        raise NoRuleError("as_strided of a tensor with gaps in memory, or from within it")
    steps = [*zip(shape, strides, strict=True)]
    spec: list[Sharded | None] = [None] * len(x.shape)
    for d, (n, step) in enumerate(zip(x.shape, x.strides, strict=True)):
        if (n, step) not in steps:
            continue
        at = steps.index((n, step))
        others = steps[:at] + steps[at + 1 :]
        reach = sum((m - 1) * stride for m, stride in others if stride <= step)
        if reach < step and all(t % (n * step) == 0 or t <= step for _, t in others):
            spec[d] = Sharded(at)

    def make(workers: Workers) -> Run:
        size = workers.local_shape
        own = strides_in(order, [n if of is None else size[of.dim] for n, of in zip(x.shape, spec, strict=True)])
        across = [(x.strides[d], own[d]) for d in order]

        def moved(stride: int) -> int:
            """A step through the memory of the whole tensor, in that of the block."""
            total = 0
            for before, after in across:
                total, stride = total + stride // before * after, stride % before
            return total

        return lambda x: x.permute(order).contiguous().as_strided(size, [moved(stride) for stride in strides])

    def copies(x: torch.Tensor) -> torch.Tensor:
        return x.permute(order).contiguous().as_strided(shape, strides)

    splittable = frozenset(of.dim for of in spec if of is not None)
    return Operation(shape, (tuple(spec),), in_blocks(make, copies), splittable)


@rule_for("expand", "broadcast_to", takes="* input size implicit")
def expand(node: Node) -> Operation:
    """Any dimension."""
    shape = node.outputs[0].shape

    def make(workers: Workers) -> Run:
        size = workers.local_shape
        return lambda x: x.expand(size)

    spec = broadcast_spec(node.inputs[0], shape)
    return Operation(shape, (spec,), in_blocks(make, lambda x: x.expand(shape)), frozenset(range(len(shape))))


@rule_for("repeat", "tile")
def repeat(node: Node) -> Operation:
    """The dimensions that are not repeated may be split."""
    shape, shape_before = node.outputs[0].shape, node.inputs[0].shape
    first = len(shape) - len(shape_before)
    spec = tuple(Sharded(first + d) if n == shape[first + d] else None for d, n in enumerate(shape_before))
    return local(node, [spec], [d for d in range(len(shape)) if d < first or shape_before[d - first] != shape[d]])


@rule_for("repeat_interleave")
def repeat_interleave(node: Node) -> Operation:
    """Any dimension but the repeated one; none if the result has a single dimension."""
    x, *counts = node.inputs
    dim = argument(node, 2, "dim")
    if dim is None:
        return local(node, [whole(value) for value in node.inputs], [0])
    n = len(x.shape)
    return local(node, [same(n, but=[dim % n]), *map(whole, counts)], [dim])


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
    """Any dimension but channels."""
    n = len(node.outputs[0].shape)
    return local(node, [same(n, but=[1])], [1])
