"""Samples and patches of images."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import InputSpec, Operation, Sharded, Workers
from distdl.models.operations.table import argument, in_blocks, local, rule_for, same


@rule_for("grid_sample")
def grid_sample(node: Node) -> Operation:
    """Any dimension; each worker reads the whole images of its batch and channels."""
    n = len(node.outputs[0].shape)
    image: InputSpec = (Sharded(0), Sharded(1), *[None] * (n - 2))
    points: InputSpec = (Sharded(0), *map(Sharded, range(2, n)), None)
    return local(node, [image, points])


@rule_for("affine_grid", takes="theta size align_corners")
def affine_grid(node: Node) -> Operation:
    """The batch."""
    shape = node.outputs[0].shape
    _, *size = argument(node, 1, "size")
    corners = argument(node, 2, "align_corners")

    def make(workers: Workers) -> Run:
        images = workers.local_shape[0]
        return lambda theta: F.affine_grid(theta, [images, *size], corners)

    return Operation(shape, ((Sharded(0), None, None),), in_blocks(make, node.as_function()), frozenset([0]))


@rule_for("unfold", "Unfold")
def unfold(node: Node) -> Operation:
    """Batch and channels for torch.nn.functional.unfold; any dimension but the unfolded one for Tensor.unfold."""
    x = node.inputs[0]
    n, out = len(x.shape), node.outputs[0].shape
    if node.target is torch.Tensor.unfold:
        dim = argument(node, 1, "dimension") % n
        return local(node, [same(n, but=[dim])], [dim, n])
    area = Fraction(1, out[-2] // x.shape[-3])
    spec: InputSpec = (*same(n - 3), Sharded(n - 3, area), None, None)
    return replace(local(node, [spec], [n - 2]), units={n - 3: area.denominator})


@rule_for("fold", "Fold")
def fold(node: Node) -> Operation:
    """Batch and channels."""
    x, out = node.inputs[0], node.outputs[0].shape
    n = len(x.shape)
    spec: InputSpec = (*same(n - 2), Sharded(n - 2, Fraction(x.shape[-2] // out[-3])), None)
    return local(node, [spec], [n - 1, n])
