"""Functions along dimensions, such as cumulative sums, sorting, shifts and differences."""

from __future__ import annotations

from functools import partial

import torch

from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import Operation, Sharded, Workers
from distdl.models.operations.table import argument, broadcast_spec, in_blocks, local, rule_for, same, whole
from distdl.models.rules.pointwise import without
from distdl.partitions.boxes import Interval


@rule_for("rot90", "cumsum", "cumprod", "sort", "argsort", "topk",
          "softmax", "log_softmax", "softmin", "normalize", "cummax", "cummin", "logcumsumexp", "glu", "diff", "msort",
          "special_softmax", "special_log_softmax", "Softmax", "LogSoftmax", "Softmin", "GLU", "renorm")  # fmt: skip
def along_dims(node: Node) -> Operation:
    """Any dimension but the dimensions along which it works."""
    shape, n = node.outputs[0].shape, len(node.inputs[0].shape)
    looked = _normalized_dims(node, n)
    spec = same(len(shape), but=looked)
    further = [spec] * (len(node.inputs) - 1) if node.key == "diff" else []  # tensors to prepend and append
    return local(node, [spec, *further], looked)


@rule_for("flip", "fliplr", "flipud")
def flip(node: Node) -> Operation:
    """Any dimension."""
    shape = node.outputs[0].shape
    dims = {"fliplr": {1}, "flipud": {0}}.get(node.key) or _normalized_dims(node, len(shape))
    spec = tuple(Sharded(d, span=partial(_mirrored, n)) if d in dims else Sharded(d) for d, n in enumerate(shape))
    return local(node, [spec])


def _mirrored(n: int, start: int, stop: int) -> Interval:
    return n - stop, n - start


@rule_for("roll", takes="input shifts dims")
def roll(node: Node) -> Operation:
    """Any dimension: a worker reads its shifted block."""
    shape = node.outputs[0].shape
    shifts, dims = argument(node, 1, "shifts"), argument(node, 2, "dims")
    if dims is None or dims == ():
        return local(node, [(None,) * len(shape)], range(len(shape)))
    by = dict.fromkeys(range(len(shape)), 0)
    several = ([n] if isinstance(n, int) else n for n in (shifts, dims))
    for shift, d in zip(*several, strict=True):
        by[d % len(shape)] += shift
    moved = {d: shift % shape[d] for d, shift in by.items() if shape[d] and shift % shape[d]}
    spec = tuple(
        Sharded(d, span=partial(_rolled, n, moved[d]), periodic=True) if d in moved else Sharded(d)
        for d, n in enumerate(shape)
    )

    def make(workers: Workers) -> Run:
        here = [d for d in moved if workers.block[d] == (0, shape[d])]  # dimensions that are not split
        return lambda x: torch.roll(x, [moved[d] for d in here], here) if here else x

    return Operation(shape, (spec,), in_blocks(make, node.as_function()), frozenset(range(len(shape))))


def _rolled(n: int, shift: int, start: int, stop: int) -> Interval:
    return (0, n) if (start, stop) == (0, n) else (start - shift, stop - shift)


@rule_for("gradient")
def gradient(node: Node) -> Operation:
    """Any dimension but the dimensions of derivatives. Each worker reads all coordinates."""
    x, *coordinates = node.inputs
    n, dim = len(x.shape), node.kwargs.get("dim")
    dims = range(n) if dim is None else {d % n for d in ([dim] if isinstance(dim, int) else dim)}
    return local(node, [same(n, but=dims), *map(whole, coordinates)], dims)


@rule_for("trapezoid", "trapz", "cumulative_trapezoid")
def trapezoid(node: Node) -> Operation:
    """Any dimension but the integrated dimension."""
    y, *others = node.inputs
    n = len(y.shape)
    dim = argument(node, 3, "dim", node.kwargs.get("dim", -1)) % n
    keeps = node.key == "cumulative_trapezoid"
    specs = [without(same(n), dim, keeps)]
    for value in others:
        points = broadcast_spec(value, y.shape) if len(value.shape) > 1 or n == 1 else (None,)
        specs.append(without(points, dim, keeps))
    return local(node, specs, [dim] if keeps else [])


def _normalized_dims(node: Node, n: int) -> set[int]:
    if node.key == "msort":
        return {0}
    if isinstance(node.target, torch.nn.Module):
        return set(range(n)) if node.module.dim is None else {node.module.dim % n}
    defaults = {"glu": -1, "sort": -1, "argsort": -1, "topk": -1, "normalize": 1, "diff": -1}
    position = {"topk": 2, "normalize": 2, "diff": 2, "rot90": 2, "renorm": 2}.get(node.key, 1)
    name = {"flip": "dims", "rot90": "dims"}.get(node.key, "dim")
    dim = node.args[position] if len(node.args) > position else node.kwargs.get(name, defaults.get(node.key))
    if node.key == "flip" and len(node.args) > 2:
        dim = node.args[1:]
    if dim is None or isinstance(dim, bool):
        return set(range(n))
    if node.key == "renorm":
        return set(range(n)) - {dim % n}
    return {d % n for d in (dim if isinstance(dim, list | tuple) else [dim])}
