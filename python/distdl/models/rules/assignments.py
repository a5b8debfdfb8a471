"""Writes into parts of tensors, by indices or along a dimension."""

from __future__ import annotations

import math
from typing import Any

import torch

from distdl.models.capture.recording import Node, Value
from distdl.models.operations.operation import NoRuleError, Operation, Sharded
from distdl.models.operations.table import argument, broadcast_spec, local, options_of, rule_for, same, whole
from distdl.models.rules.indexing import dims_indexed, index_of, one_per_dim, untouched_dims


@rule_for("setitem", "index_put")
def setitem(node: Node) -> Operation:
    """The dimensions that are written whole; any dimension, if a mask says which elements become a number."""
    x, value = node.inputs[0], argument(node, 2, "values")
    index = index_of(node) if node.key == "setitem" else tuple(argument(node, 1, "indices"))
    indices = [part for part in index if isinstance(part, Value)]
    order = [x, *indices, value] if isinstance(value, Value) else [x, *indices]
    if order != node.inputs:
        raise NoRuleError(f"{node.key} with arguments by name in another order")
    dims = len(x.shape)
    run = node.as_function() if node.key == "index_put" else node.as_function(written)
    if (mask := _mask_of(x, index)) is not None:
        after = dims - mask - len(indices[0].shape)
        if not isinstance(value, Value) or len(value.shape) <= after or math.prod(value.shape) == 1:
            specs = [same(dims), tuple(Sharded(mask + d) for d in range(len(indices[0].shape)))]
            if isinstance(value, Value):
                specs.append(broadcast_spec(value, x.shape) if len(value.shape) <= after else whole(value))
            return local(node, specs, run=run)
    kept, dims_written = untouched_dims(x, index)
    specs = [tuple(Sharded(d) if d in kept else None for d in range(dims)), *map(whole, indices)]
    if isinstance(value, Value):
        back = {o: d for d, o in kept.items()}
        first = dims_written - len(value.shape)
        own: list[Sharded | None] = []
        for e, n in enumerate(value.shape):
            d = back.get(first + e, -1)
            own.append(Sharded(d) if d >= 0 and n == x.shape[d] else None)
        specs.append(tuple(own))
    return local(node, specs, set(range(dims)) - set(kept), run)


def written(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """The tensor after a write into it."""
    x = x.clone()
    x[index] = value
    return x


def _mask_of(x: Value, index: tuple[Any, ...]) -> int | None:
    """The first dimension of the mask, if the index is a mask and whole dimensions; None for others."""
    first, d = None, 0
    for part in one_per_dim(x, index):
        if isinstance(part, Value) and part.dtype == torch.bool and first is None and part.shape:
            first = d
        elif not isinstance(part, slice) or part.indices(x.shape[d]) != (0, x.shape[d], 1):
            return None
        d += dims_indexed(part)
    return first


@rule_for("scatter", "scatter_add", "scatter_reduce")
def scatter_rule(node: Node) -> Operation:
    """All dimensions but one, if the indices have the same sizes in them."""
    x, *others = node.inputs
    n = len(x.shape)
    dim = argument(node, 1, "dim") % n
    rest = [value.shape[:dim] + value.shape[dim + 1 :] for value in node.inputs]
    if any(shape != rest[0] for shape in rest):
        return local(node, [whole(value) for value in node.inputs], range(n))
    return local(node, [same(n, but=[dim])] * (1 + len(others)), [dim])


@rule_for("index_add", "index_copy", "index_fill", "select_scatter", "slice_scatter")
def write_along(node: Node) -> Operation:
    """All dimensions but that along which elements are written."""
    by_index = node.key not in ("select_scatter", "slice_scatter")
    names = ["input", "dim", "index", "value" if node.key == "index_fill" else "source"]
    arguments = options_of(node, names if by_index else ["input", "src", "dim"])
    n = len(node.inputs[0].shape)
    dim = arguments.get("dim", 0) % n
    of_part = same(n, but=[dim])
    if node.key == "select_scatter":
        of_part = of_part[:dim] + of_part[dim + 1 :]
    specs = []
    for value in (value for value in arguments.values() if isinstance(value, Value)):
        is_part = len(value.shape) == len(of_part) and value is not arguments.get("index")
        specs.append(same(n, but=[dim]) if value is node.inputs[0] else of_part if is_part else whole(value))
    return local(node, specs, [dim])
