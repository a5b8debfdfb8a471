"""Elements of tensors and rows of tables, by tensors of indices."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch.nn.functional as F

from distdl.models.capture.recording import Node, Run
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation
from distdl.models.operations.table import argument, local, options_of, rule_for, same, whole


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
    """Any dimension of the indices; each worker has the whole table."""
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
"""Options that need all indices of a batch, write into the table, or make sparse gradients."""
