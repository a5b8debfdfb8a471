"""Products of matrices: batches, rows and columns may be split, what is summed over is whole."""

from __future__ import annotations

import torch.nn.functional as F

from distdl.models.capture import Node, Value
from distdl.models.operation import Along, NoRuleError, Operation, Reads
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


@rule("einsum")
def einsum(node: Node) -> Operation:
    """The labels of the result may be split, those that are summed over not."""
    equation = node.args[0]
    if not isinstance(equation, str) or "." in equation:
        raise NoRuleError("einsum with an ellipsis, or with sublists")
    terms, _, result = equation.replace(" ", "").partition("->")
    given = terms.split(",")
    if "->" not in equation:
        result = "".join(sorted(c for c in set(terms) - {","} if terms.count(c) == 1))
    reads = [tuple(Along(result.index(c)) if c in result and t.count(c) == 1 else None for c in t) for t in given]
    twice = [result.index(c) for t in given for c in t if t.count(c) > 1 and c in result]
    return local(node, reads, twice)
