"""Tensors that are joined, padded or taken apart."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import Operation, Sharded, Workers
from distdl.models.operations.table import argument, in_blocks, local, rule_for, same, through_layer, whole
from distdl.partitions.boxes import Interval


@rule_for("cat", "concat", "concatenate", "hstack", "vstack", "dstack", "column_stack", "row_stack")
def concatenate(node: Node) -> Operation:
    """Any dimension: a worker reads the elements of its block from each tensor."""
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


@rule_for("stack")
def stack(node: Node) -> Operation:
    """Any dimension but the new one."""
    shape = node.outputs[0].shape
    dim = argument(node, 1, "dim", 0) % len(shape)
    specs = [tuple(Sharded(d if d < dim else d + 1) for d in range(len(value.shape))) for value in node.inputs]
    return local(node, specs, [dim])


@rule_for("pad", takes="input pad mode value")
def pad(node: Node) -> Operation:
    """Any dimension, if filled with a value; otherwise the rule of the layers that pad."""
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

    return Operation(shape, (spec,), in_blocks(make, node.as_function()), frozenset(range(n)))


def _clipped(before: int, n: int, start: int, stop: int) -> Interval:
    """The part of a block within a tensor of n elements that follows `before` others."""
    return min(max(start - before, 0), n), min(max(stop - before, 0), n)


@rule_for("hsplit", "vsplit", "dsplit", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")
def split(node: Node) -> Operation:
    """All dimensions but one."""
    n = len(node.inputs[0].shape)
    dim = {"hsplit": min(1, n - 1), "vsplit": 0, "dsplit": 2}.get(node.key)
    dim = argument(node, 2, "dim", 0) % n if dim is None else dim
    return local(node, [same(n, but=[dim])], [dim])
