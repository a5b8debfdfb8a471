"""Products of matrices: batches, rows and columns may be split, what is summed over is whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F

from distdl.models.operation import Along, NoRuleError, Operation, Reads
from distdl.models.recording import Node, Value
from distdl.models.table import batches, broadcast, local, rule, same, whole


@rule("matmul", "bmm", "mm", "mv", "dot")
def matmul(node: Node) -> Operation:
    """Batches and rows of the first, columns of the second one."""
    a, b = node.inputs
    out = node.outputs[0].shape
    n = len(out)
    if len(a.shape) < 2 or len(b.shape) < 2:
        if len(a.shape) >= 2:  # a matrix and a vector
            return local(node, [(*same(n), None), whole(b)])
        return local(node, [whole(a), whole(b)], range(n))
    return local(node, [_operand(a, out, rows=True), _operand(b, out, rows=False)])


def _operand(value: Value, out: tuple[int, ...], rows: bool) -> Reads:
    own = (Along(len(out) - 2), None) if rows else (None, Along(len(out) - 1))
    return (*batches(value, out), *own)


@rule("linear", "Linear")
def linear(node: Node) -> Operation:
    """Anything but the features."""
    x, *parameters = node.inputs
    n = len(x.shape)
    run = F.linear if node.parameters else None
    return local(node, [(*same(n - 1), None), *map(whole, parameters)], [n - 1], run)


@rule("baddbmm", "addmm", "addbmm")
def with_addend(node: Node) -> Operation:
    """As the product, with an addend that is broadcast."""
    addend, a, b = node.inputs
    out = node.outputs[0].shape
    if node.key == "addbmm":
        raise NoRuleError("addbmm sums over the batch")
    return local(node, [broadcast(addend, out), _operand(a, out, rows=True), _operand(b, out, rows=False)])


@rule("outer", "cdist")
def all_pairs(node: Node) -> Operation:
    """Batches, rows of the first, rows of the second one as columns."""
    a, b = node.inputs
    out = node.outputs[0].shape
    if node.key == "outer":
        return local(node, [(Along(0),), (Along(1),)])
    n = len(out)
    return local(node, [(*batches(a, out), Along(n - 2), None), (*batches(b, out), Along(n - 1), None)])


@rule("bilinear")
def bilinear(node: Node) -> Operation:
    """Anything but the features."""
    n = len(node.outputs[0].shape)
    features: Reads = (*same(n - 1), None)
    return local(node, [features, features, *map(whole, node.inputs[2:])], [n - 1])


@rule("tril", "triu")
def triangle(node: Node) -> Operation:
    """Batches."""
    n = len(node.outputs[0].shape)
    return local(node, [(*same(n - 2), None, None)], [n - 2, n - 1])


@rule("einsum")
def einsum(node: Node) -> Operation:
    """The labels of the result may be split, those that are summed over not."""
    equation = node.args[0]
    if not isinstance(equation, str):
        raise NoRuleError("einsum with sublists")
    terms, arrow, result = equation.replace(" ", "").partition("->")
    given = terms.split(",")
    if not arrow:
        named = set(terms) - {",", "."}
        result = ("..." if "..." in terms else "") + "".join(sorted(c for c in named if terms.count(c) == 1))
    more = [len(one.shape) - len(t.replace("...", "")) for t, one in zip(given, node.inputs, strict=True)]
    labels = [f"<{i}>" for i in range(max(more))]
    of_result = _labels(result, labels)
    reads: list[Reads] = []
    twice: set[int] = set()
    for term, count, one in zip(given, more, node.inputs, strict=True):
        own = _labels(term, labels[len(labels) - count :])
        twice |= {of_result.index(c) for c in own if own.count(c) > 1 and c in of_result}
        reads.append(
            tuple(
                Along(of_result.index(c)) if own.count(c) == 1 and c in of_result and n != 1 else None
                for c, n in zip(own, one.shape, strict=True)
            )
        )
    return local(node, reads, twice)


def _labels(term: str, ellipsis: Sequence[str]) -> list[str]:
    """The labels of an operand's dimensions, of which an ellipsis has several."""
    before, dots, after = term.partition("...")
    return [*before, *(ellipsis if dots else ()), *after]
