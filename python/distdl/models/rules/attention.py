"""Attention: batches, heads and queries may be split, each query reads all keys."""

from __future__ import annotations

from distdl.models.capture import Node, Value
from distdl.models.operation import Along, NoRuleError, Operation, Reads
from distdl.models.table import argument, batches, local, rule


@rule("scaled_dot_product_attention")
def attention(node: Node) -> Operation:
    """Without dropout. Queries stay whole where each one reads another number of keys."""
    out = node.outputs[0].shape
    n = len(out)
    if argument(node, 4, "dropout_p", 0.0) > 0.0:
        raise NoRuleError("attention with dropout_p; use torch.nn.MultiheadAttention, or dropout_p=0")
    causal = bool(argument(node, 5, "is_causal", False))
    if node.kwargs.get("enable_gqa", False):
        raise NoRuleError("attention with enable_gqa")
    reads: list[Reads] = []
    for i, one in enumerate(node.inputs):
        reads.append(batches(one, out) + ((Along(n - 2), None) if i in (0, 3) and _rows(one, out) else (None, None)))
    return local(node, reads, [n - 1, *([n - 2] if causal else [])])


def _rows(value: Value, out: tuple[int, ...]) -> bool:
    return value.shape[-2] == out[-2]
