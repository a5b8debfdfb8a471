"""Parts of tensors: by slices, numbers and indices."""

from __future__ import annotations

from typing import Any

import torch

from distdl.models.capture import Node, Value
from distdl.models.operation import Along, NoRuleError, Operation, Reads
from distdl.models.table import local, rule, same, whole


@rule("getitem")
def getitem(node: Node) -> Operation:
    """The dimensions that are taken whole may be split."""
    x = node.inputs[0]
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    kept = _dims_kept(x, index)
    reads: list[Along | None] = [None] * len(x.shape)
    for d, o in kept.items():
        reads[d] = Along(o)
    rest: list[Reads] = [whole(one) for one in node.inputs[1:]]
    n = len(node.outputs[0].shape)
    return local(node, [tuple(reads), *rest], set(range(n)) - set(kept.values()))


def _dims_kept(x: Value, index: tuple[Any, ...]) -> dict[int, int]:
    """The dimensions of the input of which all is taken, each with that of the result."""
    tensors = [one for one in index if isinstance(one, Value | torch.Tensor | list)]
    if any(isinstance(one, Value) and one.dtype == torch.bool for one in tensors):
        raise NoRuleError("an index of dtype bool: the size of the result depends on values")
    used = sum(one is not None and one is not Ellipsis and not isinstance(one, bool) for one in index)
    filled: list[Any] = []
    for one in index:
        filled += [slice(None)] * (len(x.shape) - used) if one is Ellipsis else [one]
    filled += [slice(None)] * (len(x.shape) - sum(one is not None for one in filled))
    positions = [i for i, one in enumerate(filled) if isinstance(one, Value | torch.Tensor | list)]
    together = not positions or positions == list(range(positions[0], positions[-1] + 1))
    if not together:
        return {}
    dims = max((len(one.shape) if isinstance(one, Value | torch.Tensor) else 1 for one in tensors), default=0)
    kept, d, o = {}, 0, 0
    for i, one in enumerate(filled):
        if one is None:
            o += 1
        elif isinstance(one, slice):
            if one.indices(x.shape[d]) == (0, x.shape[d], 1):
                kept[d] = o
            d, o = d + 1, o + 1
        elif i in positions:
            o += dims if i == positions[0] else 0
            d += 1
        else:
            d += 1
    return kept


@rule("setitem")
def setitem(node: Node) -> Operation:
    """The dimensions that are written whole may be split."""
    x, value = node.inputs[0], node.args[2]
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if any(isinstance(one, Value | torch.Tensor | list) or one is None for one in index):
        raise NoRuleError("writing by indices")
    kept = _dims_kept(x, index)
    reads: list[Reads] = [tuple(Along(d) if d in kept else None for d in range(len(x.shape)))]
    written = _size_of(x, index)
    if isinstance(value, Value):
        first = len(written) - len(value.shape)
        back = {o: d for d, o in kept.items()}
        own: list[Along | None] = []
        for d, n in enumerate(value.shape):
            o = first + d
            own.append(Along(back[o]) if o in back and n == written[o] else None)
        reads.append(tuple(own))
    position = index

    def run(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[position] = more[0] if more else value
        return x

    return local(node, reads, set(range(len(x.shape))) - set(kept), run)


def _size_of(x: Value, index: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(torch.empty(x.shape, device="meta")[index].shape)


@rule("select", "narrow", "index_select", "gather", "take_along_dim", "unfold")
def along_one(node: Node) -> Operation:
    """All dimensions but one may be split."""
    x = node.inputs[0]
    n, out = len(x.shape), node.outputs[0].shape
    dim = (node.args[1] if len(node.args) > 1 and not isinstance(node.args[1], Value) else node.kwargs["dim"]) % n
    if node.key == "select":
        return local(node, [tuple(None if d == dim else Along(d if d < dim else d - 1) for d in range(n))])
    reads: list[Reads] = [tuple(None if d == dim else Along(d) for d in range(n))]
    if node.key in ("gather", "take_along_dim"):
        if node.inputs[1].shape[:dim] + node.inputs[1].shape[dim + 1 :] != x.shape[:dim] + x.shape[dim + 1 :]:
            return local(node, [whole(one) for one in node.inputs], range(len(out)))
        reads.append(reads[0])
    else:
        reads += [whole(one) for one in node.inputs[1:]]
    return local(node, reads, [dim] if node.key != "unfold" else [dim, len(out) - 1])


@rule("Embedding", "embedding")
def embedding(node: Node) -> Operation:
    """Indices in any blocks, of a table that each worker has."""
    if node.key == "Embedding":
        module: Any = node.target
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise NoRuleError("Embedding with max_norm, scale_grad_by_freq or sparse")

        def run(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding(x, table, module.padding_idx)

        x = node.arguments[0]
        n = len(x.shape)
        return local(node, [same(n), (None, None)], [n], run)
    x = node.inputs[0]
    n = len(x.shape)
    return local(node, [same(n), (None, None)], [n])
