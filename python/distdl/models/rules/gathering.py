"""Elements of tensors and rows of tables, by tensors of indices."""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType
from typing import Any, cast

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Run, Value
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, Sharded
from distdl.models.operations.table import argument, local, options_of, rule_for, same, whole
from distdl.models.rules.checks import check_indices
from distdl.models.rules.partial_sums import summed_over_last
from distdl.parameters.transport import zero_of
from distdl.partitions.boxes import Interval


@rule_for("index_select", "gather", "take_along_dim")
def gather_along(node: Node) -> Operation:
    """Any dimension but the indexed dimension."""
    x = node.inputs[0]
    n, out = len(x.shape), node.outputs[0].shape
    if argument(node, 3, "sparse_grad", False):
        raise NoRuleError(f"{node.key} with sparse_grad")
    position = 2 if node.key == "take_along_dim" else 1
    dim = argument(node, position, "dim")
    if dim is None:
        return local(node, [whole(value) for value in node.inputs], range(len(out)))
    dim %= n
    specs: list[InputSpec] = [same(n, but=[dim])]
    if node.key != "index_select":
        if node.inputs[1].shape[:dim] + node.inputs[1].shape[dim + 1 :] != x.shape[:dim] + x.shape[dim + 1 :]:
            return local(node, [whole(value) for value in node.inputs], range(len(out)))
        specs.append(specs[0])
    else:
        specs += [whole(value) for value in node.inputs[1:]]
    return local(node, specs, [dim])


@rule_for("take")
def take(node: Node) -> Operation:
    """Any dimension of the indices; each worker reads the whole tensor."""
    x, index = node.inputs
    return local(node, [whole(x), same(len(index.shape))])


@rule_for(
    "Embedding", "embedding", takes="input weight indices padding_idx max_norm norm_type scale_grad_by_freq sparse"
)
def embedding(node: Node) -> Operation:
    """Any dimension of the indices. If asked, features or rows of the table: each worker looks up those that it has."""
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
    indices = cast(Value, arguments.get("input", arguments.get("indices")))
    n = len(indices.shape)
    of_features, of_rows = (
        [same(n) if value is indices else spec for value in node.inputs]
        for spec in ((None, Sharded(n)), (Sharded(n), None))
    )
    table = next(value for value in node.inputs if value is not indices)
    padding: Any = getattr(node.target, "padding_idx", arguments.get("padding_idx"))
    padding = padding if padding is None else padding % table.shape[0]
    position = node.inputs.index(indices)

    def part(rows: Interval) -> Run:
        start, stop = rows

        def look_up(*tensors: torch.Tensor) -> torch.Tensor:
            index, own = tensors[position], tensors[1 - position]
            check_indices(index, table.shape[0])
            if start == stop:
                return own.new_zeros(*index.shape, own.shape[1]) + zero_of(own)
            here = (index >= start) & (index < stop)
            of_block = None if padding is None or not start <= padding < stop else padding - start
            return F.embedding((index - start).where(here, 0), own, of_block) * here.unsqueeze(-1)

        return look_up

    summed = summed_over_last(node, (*indices.shape, table.shape[0]), of_rows, part)
    return replace(local(node, of_features, [n], run), if_requested=frozenset([n]), summed=summed)


_OF_BATCHES = ("max_norm", "scale_grad_by_freq", "sparse")
"""Options that need all indices of a batch, write into the table, or make sparse gradients."""
