"""Patches of images and windows of sequences."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import torch

from distdl.models.capture.recording import Node
from distdl.models.operations.operation import InputSpec, Operation, Sharded
from distdl.models.operations.table import argument, local, rule_for, same


@rule_for("unfold", "Unfold")
def unfold(node: Node) -> Operation:
    """Tensor.unfold: all dimensions but that of the windows. Of torch.nn.functional: batch and channels."""
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
