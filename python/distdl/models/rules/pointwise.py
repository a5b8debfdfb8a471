"""Elementwise operations, with broadcasting."""

from __future__ import annotations

import torch

from distdl.models.capture.elementwise import ELEMENTWISE
from distdl.models.capture.recording import Node, Value
from distdl.models.operations.operation import InputSpec, Operation, RandomError, Sharded
from distdl.models.operations.table import argument, broadcast_spec, local, rule_for, same, whole


@rule_for("prelu")
def prelu(node: Node) -> Operation:
    """Any dimension; the slopes belong to channels, which follow the batch."""
    x, slopes = node.inputs
    shape = x.shape
    channels: InputSpec = tuple(Sharded(1) if n != 1 else None for n in slopes.shape)
    return local(node, [same(len(shape)), channels])


@rule_for("rrelu")
def rrelu(node: Node) -> Operation:
    """In evaluation any dimension."""
    if argument(node, 3, "training", False):
        raise RandomError("rrelu in training draws slopes by the sign of the input; use leaky_relu or prelu")
    return elementwise(node)


@rule_for("one_hot")
def one_hot(node: Node) -> Operation:
    """Any dimension but classes."""
    n = len(node.outputs[0].shape)
    return local(node, [same(n - 1)], [n - 1])


@rule_for("cosine_similarity", "pairwise_distance", "linalg_vecdot")
def pairwise(node: Node) -> Operation:
    """Any dimension but features."""
    shape = torch.broadcast_shapes(*(value.shape for value in node.inputs))
    n = len(shape)
    default = 1 if node.key == "cosine_similarity" else -1
    dim = (default if node.key == "pairwise_distance" else argument(node, 2, "dim", default)) % n
    keeps = len(node.outputs[0].shape) == n
    specs = [without(broadcast_spec(value, shape), dim, keeps) for value in node.inputs]
    return local(node, specs, [dim] if keeps else [])


def without(spec: InputSpec, dim: int, keeps: bool = False) -> InputSpec:
    """Let a spec read a whole dimension, which the result may not have."""
    return tuple(
        Sharded(read.dim - (read.dim > dim and not keeps)) if isinstance(read, Sharded) and read.dim != dim else None
        for read in spec
    )


@rule_for("isin", "bucketize")
def look_up(node: Node) -> Operation:
    """Any dimension; each worker reads the whole second tensor."""
    x, n = argument(node, 0, "elements" if node.key == "isin" else "input"), len(node.outputs[0].shape)
    return local(node, [whole(value) if i or value is not x else same(n) for i, value in enumerate(node.inputs)])


@rule_for("searchsorted")
def searchsorted(node: Node) -> Operation:
    """Any dimension; each worker reads the whole sequences of its rows."""
    values = argument(node, 1, "input")
    n = len(node.outputs[0].shape)
    of_rows: InputSpec = (*same(n - 1), None)
    specs = [of_rows if len(value.shape) == n > 1 else whole(value) for value in node.inputs]
    if isinstance(values, Value):
        specs[1] = same(n)
    return local(node, specs)


@rule_for("fake_quantize_per_channel_affine")
def fake_quantized(node: Node) -> Operation:
    """Any dimension may be split; scales and zero points along the axis of channels."""
    of_channels: InputSpec = (Sharded(argument(node, 3, "axis") % len(node.outputs[0].shape)),)
    return local(node, [same(len(node.outputs[0].shape)), of_channels, of_channels])


@rule_for(*ELEMENTWISE)
def elementwise(node: Node) -> Operation:
    """Any dimension may be split."""
    shape = node.outputs[0].shape
    return local(node, [broadcast_spec(value, shape) for value in node.inputs])
