"""Parts of tensors: by slices, numbers and indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch

from distdl.models.operation import Along, NoRuleError, Operation, Part, Reads
from distdl.models.recording import Node, Value
from distdl.models.table import argument, calling, in_blocks, local, rule, same, whole
from distdl.parameters.layout import Interval


@rule("getitem")
def getitem(node: Node) -> Operation:
    """Any dimension of the result, by slices and numbers; by indices, the dimensions that are taken whole."""
    x = node.inputs[0]
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if all(one is None or one is Ellipsis or isinstance(one, slice) or type(one) is int for one in index):
        return _part(node, _filled(x, index))
    kept = _dims_kept(x, index)
    reads: list[Along | None] = [None] * len(x.shape)
    for d, o in kept.items():
        reads[d] = Along(o)
    rest: list[Reads] = [whole(one) for one in node.inputs[1:]]
    n = len(node.outputs[0].shape)
    return local(node, [tuple(reads), *rest], set(range(n)) - set(kept.values()))


def _part(node: Node, taken: Sequence[slice | int | None]) -> Operation:
    """What is taken of each dimension; None is a new dimension. A worker reads what its block of the result shows."""
    x = node.inputs[0]
    reads: list[Along | Part | None] = []
    index: list[slice | int | None] = []
    o = 0
    for one in taken:
        if isinstance(one, int):
            at = one % x.shape[len(reads)]
            reads.append(Part(at, at + 1))
            index.append(0)
            continue
        if one is not None:
            n = x.shape[len(reads)]
            if not all(part is None or isinstance(part, int) for part in (one.start, one.stop, one.step)):
                raise NoRuleError("a slice between places that tensors say")
            start, stop, step = one.indices(n)
            takes_all = (start, stop, step) == (0, n, 1)
            reads.append(Along(o) if takes_all else Along(o, span=partial(_steps, start, step)))
            one = slice(None, None, step)
        index.append(one)
        o += 1
    own = tuple(index)
    make = in_blocks(lambda workers: lambda x, *_: x[own], calling(node))
    shape = node.outputs[0].shape
    rest = tuple(whole(one) for one in node.inputs[1:])
    return Operation(shape, (tuple(reads), *rest), make, frozenset(range(len(shape))))


def _steps(first: int, step: int, start: int, stop: int) -> Interval:
    return first + start * step, first + (stop - 1) * step + 1


def _filled(x: Value, index: tuple[Any, ...]) -> list[Any]:
    """An index with a slice for each dimension that it does not name."""
    used = sum(one is not None and one is not Ellipsis and not isinstance(one, bool) for one in index)
    filled: list[Any] = []
    for one in index:
        filled += [slice(None)] * (len(x.shape) - used) if one is Ellipsis else [one]
    return filled + [slice(None)] * (len(x.shape) - sum(one is not None for one in filled))


def _dims_kept(x: Value, index: tuple[Any, ...]) -> dict[int, int]:
    """The dimensions of the input of which all is taken, each with that of the result."""
    tensors = [one for one in index if isinstance(one, Value | torch.Tensor | list)]
    if any(isinstance(one, Value) and one.dtype == torch.bool for one in tensors):
        raise NoRuleError("an index of dtype bool: the size of the result depends on values")
    filled = _filled(x, index)
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


@rule("select", "narrow")
def part(node: Node) -> Operation:
    """Any dimension of the result."""
    n = len(node.inputs[0].shape)
    if len(node.inputs) > 1:
        raise NoRuleError(f"{node.key} at the place that a tensor says")
    taken: list[slice | int] = [slice(None)] * n
    if node.key == "select":
        taken[argument(node, 1, "dim") % n] = argument(node, 2, "index")
    else:
        dim, length = argument(node, 1, "dim") % n, argument(node, 3, "length")
        start = argument(node, 2, "start") % max(1, node.inputs[0].shape[dim])
        taken[dim] = slice(start, start + length)
    return _part(node, taken)


@rule("index_select", "gather", "take_along_dim")
def along_one(node: Node) -> Operation:
    """All dimensions but one may be split."""
    x = node.inputs[0]
    n, out = len(x.shape), node.outputs[0].shape
    position = 2 if node.key == "take_along_dim" else 1
    given = argument(node, position, "dim")
    if given is None:
        return local(node, [whole(one) for one in node.inputs], range(len(out)))
    dim = given % n
    reads: list[Reads] = [same(n, but=[dim])]
    if node.key != "index_select":
        if node.inputs[1].shape[:dim] + node.inputs[1].shape[dim + 1 :] != x.shape[:dim] + x.shape[dim + 1 :]:
            return local(node, [whole(one) for one in node.inputs], range(len(out)))
        reads.append(reads[0])
    else:
        reads += [whole(one) for one in node.inputs[1:]]
    return local(node, reads, [dim])


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(node: Node) -> Operation:
    """All dimensions but one may be split, if indices are as large in them."""
    x, *others = node.inputs
    n = len(x.shape)
    dim = argument(node, 1, "dim") % n
    rest = [one.shape[:dim] + one.shape[dim + 1 :] for one in node.inputs]
    if any(one != rest[0] for one in rest):
        return local(node, [whole(one) for one in node.inputs], range(n))
    return local(node, [same(n, but=[dim])] * (1 + len(others)), [dim])


@rule("unfold", "Unfold")
def unfold(node: Node) -> Operation:
    """Tensor.unfold: all dimensions but that of the windows. Of torch.nn.functional: batch and channels."""
    x = node.inputs[0]
    n, out = len(x.shape), node.outputs[0].shape
    if node.target is torch.Tensor.unfold:
        dim = argument(node, 1, "dimension") % n
        return local(node, [same(n, but=[dim])], [dim, n])
    area = Fraction(1, out[-2] // x.shape[-3])
    reads: Reads = (*same(n - 3), Along(n - 3, area), None, None)
    return replace(local(node, [reads], [n - 2]), units={n - 3: area.denominator})


@rule("fold", "Fold")
def fold(node: Node) -> Operation:
    """Batch and channels."""
    x, out = node.inputs[0], node.outputs[0].shape
    n = len(x.shape)
    reads: Reads = (*same(n - 2), Along(n - 2, Fraction(x.shape[-2] // out[-3])), None)
    return local(node, [reads], [n - 1, n])


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
