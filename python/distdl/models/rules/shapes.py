"""Operations that give the elements of a tensor another shape or order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch

from distdl.models.capture import Node
from distdl.models.operation import Along, Operation, Reads, Run, Workers
from distdl.models.table import broadcast, calling, in_blocks, local, rule


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel", "view_as", "reshape_as", "Flatten",
      "Unflatten")  # fmt: skip
def reshape(node: Node) -> Operation:
    """Groups of dimensions that have as many elements before and after; of each the first one may be split."""
    given, shape = node.inputs[0].shape, node.outputs[0].shape
    if node.key == "view" and node.args[1:] and isinstance(node.args[1], torch.dtype):
        return local(node, [broadcast(one, shape) for one in node.inputs])
    reads: list[Along | None] = [None] * len(given)
    units: dict[int, int] = {}
    splittable: set[int] = set()
    for before, after in groups(given, shape):
        i = next((d for d in before if given[d] != 1), None)
        o = next((d for d in after if shape[d] != 1), None)
        if i is None or o is None:
            continue
        inner_before = math.prod(given[d] for d in before if d > i)
        inner_after = math.prod(shape[d] for d in after if d > o)
        reads[i] = Along(o, Fraction(inner_after, inner_before))
        units[o] = math.lcm(inner_before, inner_after) // inner_after
        splittable.add(o)

    def make(workers: Workers) -> Run:
        size = workers.local_shape
        return lambda x, *_: x.reshape(size)

    rest: tuple[Reads, ...] = tuple((None,) * len(one.shape) for one in node.inputs[1:])
    kept = {d: unit for d, unit in units.items() if unit > 1}
    make_either = in_blocks(make, lambda x, *_: x.reshape(shape))
    return Operation(shape, (tuple(reads), *rest), make_either, frozenset(splittable), kept)


def groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The finest groups of neighboring dimensions with as many elements before as after."""
    if 0 in before or 0 in after:
        return [([*range(len(before))], [*range(len(after))])]
    found = []
    i = o = 0
    while i < len(before) or o < len(after):
        ins, outs = [], []
        if i < len(before):
            ins.append(i)
        if o < len(after):
            outs.append(o)
        i, o = i + len(ins), o + len(outs)
        while math.prod(before[d] for d in ins) != math.prod(after[d] for d in outs):
            if math.prod(before[d] for d in ins) < math.prod(after[d] for d in outs):
                ins.append(i)
                i += 1
            else:
                outs.append(o)
                o += 1
        found.append((ins, outs))
    return found


@rule("permute", "transpose", "t", "T", "mT", "swapaxes", "swapdims", "movedim", "moveaxis", "adjoint", "mH")
def permute(node: Node) -> Operation:
    """Each dimension goes along; which one where is read off a tensor with a dimension of each size."""
    n = len(node.inputs[0].shape)
    moved = calling(node)(torch.empty(tuple(range(2, n + 2)), device="meta"))
    assert isinstance(moved, torch.Tensor)
    order = moved.shape
    reads: list[Along | None] = [None] * n
    for o, size in enumerate(order):
        reads[size - 2] = Along(o)
    return local(node, [tuple(reads)])


@rule("expand", "expand_as", "broadcast_to")
def expand(node: Node) -> Operation:
    """A block of what is expanded, of the block's size."""
    shape = node.outputs[0].shape
    reads = [broadcast(node.inputs[0], shape), *((None,) * len(one.shape) for one in node.inputs[1:])]

    def make(workers: Workers) -> Run:
        size = workers.local_shape
        return lambda x, *_: x.expand(size)

    return Operation(shape, tuple(reads), in_blocks(make, lambda x, *_: x.expand(shape)), frozenset(range(len(shape))))


@rule("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
def concatenate(node: Node) -> Operation:
    """Any dimension but that along which they are put together."""
    shape = node.outputs[0].shape
    if node.key in ("stack", "cat", "concat", "concatenate"):
        dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))) % len(shape)
    else:
        dim = {"hstack": 0 if len(shape) == 1 else 1, "vstack": 0, "dstack": 2}[node.key]
    reads: list[Reads] = []
    for one in node.inputs:
        if len(one.shape) == len(shape):
            reads.append(tuple(None if d == dim else Along(d) for d in range(len(shape))))
        elif node.key == "stack":
            reads.append(tuple(Along(d if d < dim else d + 1) for d in range(len(one.shape))))
        else:
            reads.append((None,) * len(one.shape))
    aligned = all(len(one.shape) == len(shape) for one in node.inputs) or node.key == "stack"
    return local(node, reads, [dim] if aligned else range(len(shape)))


@rule("chunk", "split", "tensor_split", "unbind", "split_with_sizes")
def split(node: Node) -> Operation:
    """Any dimension but that along which it is taken apart."""
    shape = node.inputs[0].shape
    dim = (node.args[2 if node.key != "unbind" else 1 :] or (node.kwargs.get("dim", 0),))[0] % len(shape)
    out = node.outputs[0].shape
    if node.key == "unbind":
        return local(node, [tuple(None if d == dim else Along(d if d < dim else d - 1) for d in range(len(shape)))])
    return local(node, [tuple(None if d == dim else Along(d) for d in range(len(shape)))], [dim] if out else ())


@rule("repeat", "tile", "repeat_interleave")
def repeat(node: Node) -> Operation:
    """The dimensions that are not repeated may be split."""
    shape, given = node.outputs[0].shape, node.inputs[0].shape
    first = len(shape) - len(given)
    reads = tuple(Along(first + d) if n == shape[first + d] else None for d, n in enumerate(given))
    return local(node, [reads], [d for d in range(len(shape)) if d < first or given[d - first] != shape[d]])


@rule("roll", "flip", "fliplr", "flipud", "rot90", "cumsum", "cumprod", "sort", "argsort", "topk", "kthvalue",
      "softmax", "log_softmax", "softmin", "normalize", "cummax", "cummin", "logcumsumexp", "glu", "diff", "Softmax",
      "LogSoftmax", "Softmin", "GLU", "renorm", "unfold_copy")  # fmt: skip
def along_dims(node: Node) -> Operation:
    """Any dimension but those that it looks along."""
    shape, n = node.outputs[0].shape, len(node.inputs[0].shape)
    looked = _dims_of(node, n)
    return local(node, [tuple(None if d in looked else Along(d) for d in range(len(shape)))], looked)


def _dims_of(node: Node, n: int) -> set[int]:
    if isinstance(node.target, torch.nn.Module):
        return set(range(n)) if node.module.dim is None else {node.module.dim % n}
    defaults = {"glu": -1, "sort": -1, "argsort": -1, "topk": -1, "kthvalue": -1, "normalize": 1, "diff": -1}
    position = {"roll": 2, "topk": 2, "kthvalue": 2, "normalize": 2, "diff": 2, "flip": 1}.get(node.key, 1)
    name = {"roll": "dims", "flip": "dims"}.get(node.key, "dim")
    given = node.args[position] if len(node.args) > position else node.kwargs.get(name, defaults.get(node.key))
    if node.key == "flip" and len(node.args) > 2:
        given = node.args[1:]
    if given is None or isinstance(given, bool):
        return set(range(n))
    return {d % n for d in (given if isinstance(given, list | tuple) else [given])}
