"""Slices, numbers and tensors as indices."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from distdl.models.capture.recording import Node, Value
from distdl.models.operations.operation import NoRuleError, Operation, Sharded, Slice
from distdl.models.operations.table import argument, in_blocks, local, rule_for, whole
from distdl.partitions.boxes import Interval
from distdl.torch_compat.trees import tree_leaves


@rule_for("getitem")
def getitem(node: Node) -> Operation:
    """Any dimension, if the index has slices and numbers only; otherwise dimensions that are taken whole."""
    x = node.inputs[0]
    index = index_of(node)
    if all(part is None or part is Ellipsis or isinstance(part, slice | int) for part in index):
        return _sliced(node, one_per_dim(x, index))
    kept, n = untouched_dims(x, index)
    spec = tuple(Sharded(kept[d]) if d in kept else None for d in range(len(x.shape)))
    return local(node, [spec, *map(whole, node.inputs[1:])], set(range(n)) - set(kept.values()))


@rule_for("select", "narrow", takes="input dim index start length")
def select_or_narrow(node: Node) -> Operation:
    """Any dimension of the result."""
    n = len(node.inputs[0].shape)
    if len(node.inputs) > 1:
        raise NoRuleError(f"{node.key} at a position that is a tensor")
    taken: list[slice | int] = [slice(None)] * n
    if node.key == "select":
        taken[argument(node, 1, "dim") % n] = argument(node, 2, "index")
    else:
        dim, length = argument(node, 1, "dim") % n, argument(node, 3, "length")
        start = argument(node, 2, "start") % max(1, node.inputs[0].shape[dim])
        taken[dim] = slice(start, start + length)
    return _sliced(node, taken)


def _sliced(node: Node, taken: Sequence[slice | int | None]) -> Operation:
    """Take slices of dimensions, and insert a dimension for None. A worker reads the elements of its block."""
    x = node.inputs[0]
    spec: list[Sharded | Slice | None] = []
    index: list[slice | int | None] = []
    out_dim = 0
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
            spec.append(Sharded(out_dim) if takes_all else Sharded(out_dim, span=partial(_steps, start, step)))
            part = slice(None, None, step)  # of what the worker reads
        index.append(part)
        out_dim += 1
    index_in_block = tuple(index)
    make = in_blocks(lambda workers: lambda x, *_: x[index_in_block], node.as_function())
    shape = node.outputs[0].shape
    rest = tuple(whole(value) for value in node.inputs[1:])
    return Operation(shape, (tuple(spec), *rest), make, frozenset(range(len(shape))))


def _steps(first: int, step: int, start: int, stop: int) -> Interval:
    return first + start * step, first + (stop - 1) * step + 1


def index_of(node: Node) -> tuple[Any, ...]:
    """The index, with plain numbers, and with tensors in place of lists and arrays."""
    index = node.args[1]
    if isinstance(index, list) and any(part is None or part is ... or isinstance(part, slice) for part in index):
        index = tuple(index)  # as torch takes it
    if isinstance(index, list) and any(isinstance(part, list | tuple) for part in index):
        raise NoRuleError("a list of lists as an index, which may mean a tuple or a tensor to torch; use either")
    return tuple(map(_plain, index if isinstance(index, tuple) else (index,)))


def _plain(part: Any) -> Any:
    is_number = isinstance(part, Value | torch.Tensor) and not part.shape
    if isinstance(part, bool | np.bool_) or (is_number and part.dtype == torch.bool):
        raise NoRuleError("an index that is True or False")
    if isinstance(part, slice):
        ends = (part.start, part.stop, part.step)
        if any(isinstance(end, Value | torch.Tensor) for end in ends):
            raise NoRuleError("a slice with tensors as its ends")
        return slice(*(None if end is None else operator.index(end) for end in ends))
    if isinstance(part, Value | torch.Tensor) or part is None or part is Ellipsis:
        return part
    if isinstance(part, Sequence) or (isinstance(part, np.ndarray) and part.ndim):
        if any(isinstance(each, Value) for each in tree_leaves(part)):
            raise NoRuleError("a list of tensors as an index")
        return torch.as_tensor(part, device="cpu")
    return operator.index(part)


def one_per_dim(x: Value, index: tuple[Any, ...]) -> list[Any]:
    """An index with a slice for each dimension that it leaves out."""
    omitted = [slice(None)] * (len(x.shape) - sum(map(dims_indexed, index)))
    filled: list[Any] = []
    for part in index:
        filled += omitted if part is Ellipsis else [part]
    return filled if any(part is Ellipsis for part in index) else filled + omitted


def dims_indexed(part: Any) -> int:
    """The number of dimensions of the input that a part of an index takes."""
    if isinstance(part, Value | torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
        return len(part.shape)
    return 0 if part is None or part is Ellipsis else 1


def untouched_dims(x: Value, index: tuple[Any, ...]) -> tuple[dict[int, int], int]:
    """The dimensions that are taken whole, with their dimensions in the result, and the result's number of dimensions.

    They are found by indexing a tensor in which these dimensions have unique sizes.
    """
    probe: list[Any] = []
    shape, other_sizes, d = list(x.shape), {1}, 0
    whole_dims: list[int] = []
    for part in one_per_dim(x, index):
        count = dims_indexed(part)
        if isinstance(part, slice):
            taken = range(*part.indices(x.shape[d]))
            takes_all = taken == range(x.shape[d])
            whole_dims += [d] if takes_all else []
            other_sizes.add(len(taken))
            probe.append(slice(None) if takes_all else part)
        elif not isinstance(part, Value | torch.Tensor):
            probe.append(part)
        elif not part.shape:
            probe.append(0)  # for torch it is a number
        else:
            is_mask = part.dtype in (torch.bool, torch.uint8)
            own_shape = (1,) if is_mask else tuple(part.shape)
            other_sizes.update(own_shape)
            probe += [torch.empty(own_shape, dtype=torch.long, device="meta")] * count
        d += count
    unique_sizes = (size for size in itertools.count(2) if size not in other_sizes)
    size_of = dict(zip(whole_dims, unique_sizes, strict=False))
    for d, size in size_of.items():
        shape[d] = size
    result = torch.empty((), device="meta").expand(shape)[tuple(probe)].shape
    return {d: result.index(size) for d, size in size_of.items()}, len(result)
