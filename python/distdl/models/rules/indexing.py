"""Parts of tensors: by slices, numbers and indices."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Value
from distdl.models.capture.replay import Run, as_function
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, Sharded, Slice
from distdl.models.operations.table import argument, broadcast_spec, in_blocks, local, options_of, rule_for, same, whole
from distdl.parameters.layout import Interval
from distdl.torch_compat.trees import tree_flatten


@rule_for("getitem")
def getitem(node: Node) -> Operation:
    """Any dimension of the result, by slices and numbers; by indices, the dimensions that are taken whole."""
    x = node.inputs[0]
    index = _index(node)
    if all(part is None or part is Ellipsis or isinstance(part, slice | int) for part in index):
        return _part(node, _filled(x, index))
    kept, n = _dims_kept(x, index)
    spec = tuple(Sharded(kept[d]) if d in kept else None for d in range(len(x.shape)))
    return local(node, [spec, *map(whole, node.inputs[1:])], set(range(n)) - set(kept.values()))


def _index(node: Node) -> tuple[Any, ...]:
    """The index in brackets, with plain numbers, and tensors in place of lists and arrays of numbers."""
    index = node.args[1]
    if isinstance(index, list) and any(isinstance(part, list | tuple | slice | None) for part in index):
        raise NoRuleError("a list of lists as an index, which torch takes for a tuple or not; use one, or a tensor")
    return tuple(map(_plain, index if isinstance(index, tuple) else (index,)))


def _plain(part: Any) -> Any:
    is_number = isinstance(part, Value | torch.Tensor) and not part.shape
    if isinstance(part, bool | np.bool_) or (is_number and part.dtype == torch.bool):
        raise NoRuleError("an index that is True or False")
    if isinstance(part, slice):
        ends = (part.start, part.stop, part.step)
        if any(isinstance(end, Value | torch.Tensor) for end in ends):
            raise NoRuleError("a slice between places that tensors say")
        return slice(*(None if end is None else operator.index(end) for end in ends))
    if isinstance(part, Value | torch.Tensor) or part is None or part is Ellipsis:
        return part
    if isinstance(part, Sequence) or (isinstance(part, np.ndarray) and part.ndim):
        if any(isinstance(each, Value) for each in tree_flatten(part)[0]):
            raise NoRuleError("a list of tensors as an index")
        return torch.as_tensor(part, device="cpu")
    return operator.index(part)


def _part(node: Node, taken: Sequence[slice | int | None]) -> Operation:
    """Take a part of each dimension; None is a new one. A worker reads the elements of its block of the result."""
    x = node.inputs[0]
    spec: list[Sharded | Slice | None] = []
    index: list[slice | int | None] = []
    o = 0
    for part in taken:
        if isinstance(part, int):
            at = part % x.shape[len(spec)]
            spec.append(Slice(at, at + 1))
            index.append(0)
            continue
        if part is not None:
            n = x.shape[len(spec)]
            start, stop, step = part.indices(n)
            takes_all = (start, stop, step) == (0, n, 1)
            spec.append(Sharded(o) if takes_all else Sharded(o, span=partial(_steps, start, step)))
            part = slice(None, None, step)
        index.append(part)
        o += 1
    own = tuple(index)
    make = in_blocks(lambda workers: lambda x, *_: x[own], as_function(node))
    shape = node.outputs[0].shape
    rest = tuple(whole(value) for value in node.inputs[1:])
    return Operation(shape, (tuple(spec), *rest), make, frozenset(range(len(shape))))


def _steps(first: int, step: int, start: int, stop: int) -> Interval:
    return first + start * step, first + (stop - 1) * step + 1


def _filled(x: Value, index: tuple[Any, ...]) -> list[Any]:
    """An index with a slice for each dimension that it does not name."""
    left = [slice(None)] * (len(x.shape) - sum(map(_dims_of, index)))
    filled: list[Any] = []
    for part in index:
        filled += left if part is Ellipsis else [part]
    return filled if any(part is Ellipsis for part in index) else filled + left


def _dims_of(part: Any) -> int:
    """How many dimensions of the input a part of an index is for."""
    if isinstance(part, Value | torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
        return len(part.shape)
    return 0 if part is None or part is Ellipsis else 1


def _dims_kept(x: Value, index: tuple[Any, ...]) -> tuple[dict[int, int], int]:
    """The dimensions of the input of which all is taken, each with that of the result, and how many the result has.

    Where these are is read off a tensor in which they have sizes that nothing else has.
    """
    probe: list[Any] = []
    shape, others, d = list(x.shape), {1}, 0
    all_of: list[int] = []
    for part in _filled(x, index):
        count = _dims_of(part)
        if isinstance(part, slice):
            taken = range(*part.indices(x.shape[d]))
            takes_all = taken == range(x.shape[d])
            all_of += [d] if takes_all else []
            others.add(len(taken))
            probe.append(slice(None) if takes_all else part)
        elif not isinstance(part, Value | torch.Tensor):
            probe.append(part)
        elif not part.shape:
            probe.append(0)  # for torch it is a number
        else:
            is_mask = part.dtype in (torch.bool, torch.uint8)
            own_shape = (1,) if is_mask else tuple(part.shape)
            others.update(own_shape)
            probe += [torch.empty(own_shape, dtype=torch.long, device="meta")] * count
        d += count
    sizes = itertools.filterfalse(others.__contains__, itertools.count(2))
    size_of = dict(zip(all_of, sizes, strict=False))
    for d, size in size_of.items():
        shape[d] = size
    result = torch.empty((), device="meta").expand(shape)[tuple(probe)].shape
    return {d: result.index(size) for d, size in size_of.items()}, len(result)


@rule_for("setitem", "index_put")
def setitem(node: Node) -> Operation:
    """The dimensions that are written whole may be split; any, where a mask says what becomes a number."""
    x, value = node.inputs[0], argument(node, 2, "values")
    index = _index(node) if node.key == "setitem" else tuple(argument(node, 1, "indices"))
    indices = [part for part in index if isinstance(part, Value)]
    order = [x, *indices, value] if isinstance(value, Value) else [x, *indices]
    if order != node.inputs:
        raise NoRuleError(f"{node.key} with arguments by name in another order")
    dims = len(x.shape)
    run = as_function(node) if node.key == "index_put" else as_function(node, written)
    if (mask := _mask_of(x, index)) is not None:
        after = dims - mask - len(indices[0].shape)
        if not isinstance(value, Value) or len(value.shape) <= after or math.prod(value.shape) == 1:
            specs = [same(dims), tuple(Sharded(mask + d) for d in range(len(indices[0].shape)))]
            if isinstance(value, Value):
                specs.append(broadcast_spec(value, x.shape) if len(value.shape) <= after else whole(value))
            return local(node, specs, run=run)
    kept, dims_written = _dims_kept(x, index)
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
    """A tensor as it is after something was written into it."""
    x = x.clone()
    x[index] = value
    return x


def _mask_of(x: Value, index: tuple[Any, ...]) -> int | None:
    """The first dimension of a mask that is written through, if the index is that and whole dimensions alone."""
    first, d = None, 0
    for part in _filled(x, index):
        if isinstance(part, Value) and part.dtype == torch.bool and first is None and part.shape:
            first = d
        elif not isinstance(part, slice) or part.indices(x.shape[d]) != (0, x.shape[d], 1):
            return None
        d += _dims_of(part)
    return first


@rule_for("select", "narrow", takes="input dim index start length")
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


@rule_for("index_select", "gather", "take_along_dim")
def along_one(node: Node) -> Operation:
    """All dimensions but one may be split."""
    x = node.inputs[0]
    n, out = len(x.shape), node.outputs[0].shape
    if argument(node, 3, "sparse_grad", False):
        raise NoRuleError(f"{node.key} with sparse_grad")
    position = 2 if node.key == "take_along_dim" else 1
    dim_given = argument(node, position, "dim")
    if dim_given is None:
        return local(node, [whole(value) for value in node.inputs], range(len(out)))
    dim = dim_given % n
    specs: list[InputSpec] = [same(n, but=[dim])]
    if node.key != "index_select":
        if node.inputs[1].shape[:dim] + node.inputs[1].shape[dim + 1 :] != x.shape[:dim] + x.shape[dim + 1 :]:
            return local(node, [whole(value) for value in node.inputs], range(len(out)))
        specs.append(specs[0])
    else:
        specs += [whole(value) for value in node.inputs[1:]]
    return local(node, specs, [dim])


@rule_for("scatter", "scatter_add", "scatter_reduce")
def scatter_rule(node: Node) -> Operation:
    """All dimensions but one may be split, if indices are as large in them."""
    x, *others = node.inputs
    n = len(x.shape)
    dim = argument(node, 1, "dim") % n
    rest = [value.shape[:dim] + value.shape[dim + 1 :] for value in node.inputs]
    if any(shape != rest[0] for shape in rest):
        return local(node, [whole(value) for value in node.inputs], range(n))
    return local(node, [same(n, but=[dim])] * (1 + len(others)), [dim])


@rule_for("index_add", "index_copy", "index_fill", "select_scatter", "slice_scatter")
def written_along_one(node: Node) -> Operation:
    """All dimensions but the one along which something is written."""
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


@rule_for("take")
def take(node: Node) -> Operation:
    """Indices in any blocks, of a tensor that each worker reads whole."""
    x, index = node.inputs
    return local(node, [whole(x), same(len(index.shape))])


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


@rule_for(
    "Embedding", "embedding", takes="input weight indices padding_idx max_norm norm_type scale_grad_by_freq sparse"
)
def embedding(node: Node) -> Operation:
    """Indices in any blocks, of a table that each worker has."""
    run: Run | None = None
    if node.key == "Embedding":
        module: Any = node.target
        arguments = {"input": node.arguments[0]} | {name: getattr(module, name) for name in _OF_BATCHES}
        run = lambda x, table: F.embedding(x, table, module.padding_idx)  # noqa: E731
    else:
        of_layer = ["input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"]
        of_torch = ["weight", "input", "padding_idx", "scale_grad_by_freq", "sparse"]
        arguments = options_of(node, of_layer if isinstance(node.target, FunctionType) else of_torch)
    if any(arguments.get(name) not in (None, False) for name in _OF_BATCHES):
        raise NoRuleError(f"{node.key} with {', '.join(_OF_BATCHES)}")
    indices = arguments.get("input", arguments.get("indices"))
    n = len(node.outputs[0].shape) - 1
    return local(node, [same(n) if value is indices else (None, None) for value in node.inputs], [n], run)


_OF_BATCHES = ("max_norm", "scale_grad_by_freq", "sparse")
"""What looks at all indices of a batch, writes into the table, or gives it gradients that are no blocks."""
