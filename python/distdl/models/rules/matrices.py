"""Products of matrices: batches, rows and columns may be split, dimensions that are summed over are whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Value
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, Sharded, Workers
from distdl.models.operations.placement import Blocks
from distdl.models.operations.table import argument, batches, broadcast_spec, local, rule_for, same, whole
from distdl.models.rules.partial_sums import Finish, Part, summed_over_last
from distdl.models.rules.pointwise import without
from distdl.partitions.boxes import Interval


@rule_for("matmul", "bmm", "mm", "mv", "dot", "linalg_matmul", "vdot")
def matmul(node: Node) -> Operation:
    """Batches, rows of the first and columns of the second matrix; or the dimension over which it sums."""
    a, b = node.inputs
    out = node.outputs[0].shape
    n = len(out)
    if len(a.shape) < 2 or len(b.shape) < 2:
        if len(a.shape) >= 2:  # a matrix and a vector
            return local(node, [(*same(n), None), whole(b)])
        return local(node, [whole(a), whole(b)], range(n))
    operation = local(node, [_operand(a, out, rows=True), _operand(b, out, rows=False)])
    return replace(operation, summed=_summed(node, torch.matmul, a, b))


def _summed(
    node: Node, product: Part, a: Value, b: Value, before: Sequence[InputSpec] = (), finish: Finish | None = None
) -> Operation | None:
    """The product of matrices, split along the dimension over which it sums."""
    out = node.outputs[0].shape
    if node.inputs[-2:] != [a, b]:
        return None
    n = len(out)
    specs: list[InputSpec] = [
        *before, (*batches(a, out), Sharded(n - 2), Sharded(n - 1)), (*batches(b, out), Sharded(n - 1), None)
    ]  # fmt: skip
    part: Part = lambda *tensors: product(*tensors[-2:])  # noqa: E731
    options = {} if finish is None else {"finish": finish}
    return summed_over_last(node, (*out[:-1], a.shape[-1]), specs, lambda interval: part, **options)


def _operand(value: Value, out: tuple[int, ...], rows: bool) -> InputSpec:
    own = (Sharded(len(out) - 2), None) if rows else (None, Sharded(len(out) - 1))
    return (*batches(value, out), *own)


@rule_for("linear", "Linear", "transposed_linear", takes="input weight bias")
def linear(node: Node) -> Operation:
    """Any dimension but the features. If asked, features of the result, or of the input, whose parts are summed."""
    x, *parameters = node.inputs
    n = len(x.shape)
    is_transposed = node.key == "transposed_linear"
    run = F.linear if node.parameters else None
    by_result: list[InputSpec] = [(Sharded(n - 1), *[None] * (len(value.shape) - 1)) for value in parameters]
    by_input: list[InputSpec] = [(None, Sharded(n - 1)), *map(whole, parameters[1:])]
    if is_transposed:
        by_result[0], by_input[0] = by_input[0], by_result[0]
    operation = local(node, [(*same(n - 1), None), *by_result], [n - 1], run)

    def finish(y: torch.Tensor, tensors: Sequence[torch.Tensor], features: Interval) -> torch.Tensor:
        return y if len(tensors) == 2 else y + tensors[2][slice(*features)]

    part: Part = lambda x, weight, *bias: F.linear(x, weight.mT if is_transposed else weight)  # noqa: E731
    summed = summed_over_last(node, x.shape, [same(n), *by_input], lambda interval: part, finish)
    return replace(operation, if_requested=frozenset([n - 1]), summed=summed)


@rule_for("baddbmm", "addmm", "addbmm", "addmv", "addr")
def with_addend(node: Node) -> Operation:
    """Batches, rows and columns of the product, with an addend that is broadcast."""
    addend, a, b = node.inputs
    out = node.outputs[0].shape
    if node.key == "addbmm":
        raise NoRuleError("addbmm sums over the batch")
    factors: list[InputSpec] = [(Sharded(0), None), (None,)] if node.key == "addmv" else [(Sharded(0),), (Sharded(1),)]
    if node.key not in ("addmv", "addr"):
        factors = [_operand(a, out, rows=True), _operand(b, out, rows=False)]
    operation = local(node, [broadcast_spec(addend, out), *factors])
    if node.key not in ("addmm", "baddbmm") or node.kwargs:
        return operation

    def finish(y: torch.Tensor, tensors: Sequence[torch.Tensor], features: Interval) -> torch.Tensor:
        return y + tensors[0][..., slice(*features)]

    rowless = addend.shape[:-1] in ((), (1,), (1, 1)) and addend.shape[-1:] == out[-1:]  # a bias
    return replace(operation, summed=_summed(node, torch.matmul, a, b, [whole(addend)], finish) if rowless else None)


@rule_for("outer", "ger", "cdist")
def all_pairs(node: Node) -> Operation:
    """Batches and rows of both tensors."""
    a, b = node.inputs
    out = node.outputs[0].shape
    if node.key in ("outer", "ger"):
        return local(node, [(Sharded(0),), (Sharded(1),)])
    n = len(out)
    return local(node, [(*batches(a, out), Sharded(n - 2), None), (*batches(b, out), Sharded(n - 1), None)])


@rule_for("bilinear")
def bilinear(node: Node) -> Operation:
    """Any dimension but the features."""
    n = len(node.outputs[0].shape)
    features: InputSpec = (*same(n - 1), None)
    return local(node, [features, features, *map(whole, node.inputs[2:])], [n - 1])


@rule_for("inner", "tensordot")
def contracted(node: Node) -> Operation:
    """The dimensions that are not summed over, of the first and then of the second tensor."""
    a, b = node.inputs
    n, m = len(a.shape), len(b.shape)
    if not n or not m:
        return local(node, [broadcast_spec(value, node.outputs[0].shape) for value in node.inputs])
    dims = [[-1], [-1]] if node.key == "inner" else argument(node, 2, "dims", 2)
    if isinstance(dims, int):
        dims = [range(n - dims, n), range(dims)]
    left = [d for d in range(n) if d not in {e % n for e in dims[0]}]
    right = [d for d in range(m) if d not in {e % m for e in dims[1]}]
    of_a = tuple(Sharded(left.index(d)) if d in left else None for d in range(n))
    of_b = tuple(Sharded(len(left) + right.index(d)) if d in right else None for d in range(m))
    return local(node, [of_a, of_b])


@rule_for("kron")
def kron(node: Node) -> Operation:
    """Any dimension, in multiples of the size of the second tensor, which each worker reads whole."""
    a, b = node.inputs
    shape = node.outputs[0].shape
    first = len(shape) - len(a.shape)
    second = (1,) * (len(shape) - len(b.shape)) + b.shape
    if 0 in shape:
        return local(node, [whole(a), whole(b)], range(len(shape)))
    spec = tuple(Sharded(d, Fraction(1, second[d])) for d in range(first, len(shape)))
    return replace(local(node, [spec, whole(b)], range(first)), units=dict(enumerate(second)))


@rule_for("cross", "linalg_cross", takes="input other dim")
def cross(node: Node) -> Operation:
    """Any dimension but the three components."""
    shape = node.outputs[0].shape
    axis = argument(node, 2, "dim", None if node.key == "cross" else -1)
    dim = shape.index(3) if axis is None else axis % len(shape)
    specs = [without(broadcast_spec(value, shape), dim, keeps=True) for value in node.inputs]
    return local(node, specs, [dim], lambda a, b: torch.linalg.cross(a, b, dim=dim - len(shape)))


_OF_MATRICES = (
    "cholesky", "cholesky_ex", "cond", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inv_ex", "lu",
    "lu_factor", "lu_factor_ex", "matrix_exp", "matrix_power", "matrix_rank", "pinv", "qr", "slogdet", "svd", "svdvals",
)  # fmt: skip


@rule_for(*(f"linalg_{name}" for name in _OF_MATRICES), "cholesky", "cholesky_inverse", "det",
          "inverse", "logdet", "lu", "matrix_exp", "matrix_power", "pinverse", "qr", "slogdet", "svd")  # fmt: skip
def of_each_matrix(node: Node) -> Operation:
    """Batches."""
    x, *others = node.inputs
    n = len(x.shape)
    if others:
        raise NoRuleError(f"{node.key} with a tensor of parameters")
    call = node.as_function()

    def placements(workers: Workers) -> list[Blocks]:
        batch = workers.blocks.block_sizes[: n - 2]
        sizes = (tuple((size,) for size in value.shape[n - 2 :]) for value in node.outputs)
        return [Blocks(workers.blocks.ranks, (*batch, *block_sizes)) for block_sizes in sizes]

    return Operation(
        x.shape, ((*same(n - 2), None, None),), lambda workers: call, frozenset(range(n - 2)), placements=placements,
        exchanges_nothing=True,
    )  # fmt: skip


@rule_for("linalg_solve", "linalg_solve_triangular", "cholesky_solve")
def solve(node: Node) -> Operation:
    """Batches."""
    a, b = node.inputs
    n, m = len(a.shape), len(b.shape)
    if argument(node, 0, "B" if node.key == "cholesky_solve" else "A") is not a:
        raise NoRuleError(f"{node.key} with arguments by name in another order")
    out = node.outputs[0].shape
    if node.key == "linalg_solve" and (m == 1 or (m == n - 1 and b.shape == a.shape[:-1])):
        return local(node, [(*same(n - 2), None, None), (*same(m - 1), None)], [m - 1])
    specs: list[InputSpec] = [(*batches(value, out), None, None) for value in node.inputs]
    filled = node.as_function()

    def run(a: torch.Tensor, b: torch.Tensor) -> object:
        return filled(a, b.reshape((1,) * (n - m) + b.shape))  # or torch may take it for vectors

    return local(node, specs, [len(out) - 2, len(out) - 1], run)


@rule_for("diagonal", "linalg_diagonal", "diag_embed")
def diagonal(node: Node) -> Operation:
    """Any dimension but the matrices and their diagonals."""
    is_in_matrix = node.key == "diag_embed"
    matrix = node.outputs[0] if is_in_matrix else node.inputs[0]
    n = len(matrix.shape)
    first = (0, 1) if node.key == "diagonal" else (-2, -1)
    of_matrix = {argument(node, 2 + i, f"dim{i + 1}", d) % n for i, d in enumerate(first)}
    rest = [d for d in range(n) if d not in of_matrix]
    if is_in_matrix:
        return local(node, [(*map(Sharded, rest), None)], of_matrix)
    spec = tuple(Sharded(rest.index(d)) if d in rest else None for d in range(n))
    return local(node, [spec], [n - 2])


@rule_for("diag", "diagflat", "histc", "trace")
def of_whole_matrix(node: Node) -> Operation:
    """No dimension."""
    return local(node, [whole(value) for value in node.inputs], range(len(node.outputs[0].shape)))


@rule_for("tril", "triu")
def triangle(node: Node) -> Operation:
    """Batches."""
    n = len(node.outputs[0].shape)
    return local(node, [(*same(n - 2), None, None)], [n - 2, n - 1])


@rule_for("einsum")
def einsum(node: Node) -> Operation:
    """The labels of the result."""
    equation = node.args[0]
    if not isinstance(equation, str):
        raise NoRuleError("einsum with sublists")
    terms, arrow, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if not arrow:
        named = set(terms) - {",", "."}
        result = ("..." if "..." in terms else "") + "".join(sorted(c for c in named if terms.count(c) == 1))
    counts = [len(value.shape) - len(t.replace("...", "")) for t, value in zip(operands, node.inputs, strict=True)]
    labels = [f"<{i}>" for i in range(max(counts))]
    of_result = _labels(result, labels)
    specs: list[InputSpec] = []
    twice: set[int] = set()
    for term, count, value in zip(operands, counts, node.inputs, strict=True):
        own = _labels(term, labels[len(labels) - count :])
        twice |= {of_result.index(c) for c in own if own.count(c) > 1 and c in of_result}
        specs.append(
            tuple(
                Sharded(of_result.index(c)) if own.count(c) == 1 and c in of_result and n != 1 else None
                for c, n in zip(own, value.shape, strict=True)
            )
        )
    operation = local(node, specs, twice)
    summed = _summed_label(node, of_result, [
        _labels(term, labels[len(labels) - count :]) for term, count in zip(operands, counts, strict=True)
    ])  # fmt: skip
    return replace(operation, summed=summed)


def _summed_label(node: Node, result: Sequence[str], terms: Sequence[Sequence[str]]) -> Operation | None:
    """The operation, split along the only label over which it sums."""
    sizes: dict[str, int] = {}
    for term, value in zip(terms, node.inputs, strict=True):
        sizes.update(zip(term, value.shape, strict=True))
    summed = sizes.keys() - set(result)
    if len(summed) != 1 or not result or any(1 in value.shape for value in node.inputs):
        return None
    if any(len({*term}) < len(term) for term in terms):
        return None
    label = summed.pop()
    places = {c: Sharded(i) for i, c in enumerate((*result[:-1], label))}
    part: Part = node.as_function()
    specs = [tuple(places.get(c) for c in term) for term in terms]
    space = (*node.outputs[0].shape[:-1], sizes[label])
    return summed_over_last(node, space, specs, lambda interval: part)


def _labels(term: str, ellipsis: Sequence[str]) -> list[str]:
    """The labels of an operand's dimensions, with several labels for an ellipsis."""
    before, dots, after = term.partition("...")
    return [*before, *(ellipsis if dots else ()), *after]
