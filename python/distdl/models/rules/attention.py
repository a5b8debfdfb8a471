"""Attention: batches, heads and queries may be split, each query reads all keys."""

from __future__ import annotations

import functools
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F

from distdl.models.capture.recording import Node, Run, Value
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, Sharded, Workers
from distdl.models.operations.placement import Blocks
from distdl.models.operations.table import argument, batches, in_blocks, options_of, rule_for, whole
from distdl.models.rules.applied_layer import layer_operation
from distdl.models.rules.drawing import mask_of, whole_rows
from distdl.partitions.boxes import Interval


@rule_for("scaled_dot_product_attention", takes="query key value attn_mask dropout_p is_causal scale enable_gqa")
def attention(node: Node) -> Operation:
    """Any dimension but features. With dropout, a worker keeps the weights of its queries."""
    out = node.outputs[0].shape
    n = len(out)
    query, key, value = (argument(node, i, name) for i, name in enumerate(("query", "key", "value")))
    mask = argument(node, 3, "attn_mask")
    if node.inputs != [tensor for tensor in (query, key, value, mask) if tensor is not None]:
        raise NoRuleError("attention with arguments by name in another order")
    p, causal = argument(node, 4, "dropout_p", 0.0), bool(argument(node, 5, "is_causal", False))
    options = {"scale": node.kwargs.get("scale"), "enable_gqa": node.kwargs.get("enable_gqa", False)}
    specs: list[InputSpec] = [(*batches(query, out), Sharded(n - 2), None)]
    group = 1
    for tensor in (key, value):
        own = list(batches(tensor, out))
        if options["enable_gqa"] and n > 2 and tensor.shape[-3] != out[-3]:
            own[-1] = Sharded(n - 3, Fraction(tensor.shape[-3], out[-3]))
            group = max(group, out[-3] // tensor.shape[-3])
        specs.append((*own, None, None))
    if mask is not None and len(mask.shape) > 1:
        specs.append((*batches(mask, out), Sharded(n - 2) if mask.shape[-2] == out[-2] != 1 else None, None))
    elif mask is not None:  # of all queries
        specs.append((None,) * len(mask.shape))
    length = key.shape[-2]
    call: Run = partial(_attend, p=p, options=options)

    def make(workers: Workers | None) -> Run:
        rows = (0, out[-2]) if workers is None else workers.block[n - 2]
        if not causal:
            return call
        if p == 0.0 and rows == (0, out[-2]):
            return partial(_attend, p=p, options=options | {"is_causal": True})
        return lambda *tensors: call(*tensors, _lower(rows, length, tensors[-1]))

    operation = Operation(out, tuple(specs), make, frozenset(range(n - 1)), {n - 3: group})
    if p == 0.0:
        return operation if causal else replace(operation, make=in_blocks(make, node.as_function()))
    mask_of_weights = mask_of((*out[:-1], length), query.dtype, p, is_whole=True)
    return replace(operation, draw=whole_rows(mask_of_weights, length))


_masks: MutableMapping[tuple[object, ...], torch.Tensor] = WeakValueDictionary()


def _lower(rows: Interval, columns: int, like: torch.Tensor) -> torch.Tensor:
    """The mask of some rows of causal attention. All layers whose backward passes need it have the same in memory."""
    key = (rows, columns, like.dtype, like.device)
    is_real = type(like) is torch.Tensor and not torch.compiler.is_compiling()
    mask = _masks.get(key) if is_real else None
    if mask is None:
        start, stop = rows
        mask = torch.full((stop - start, columns), -torch.inf, dtype=like.dtype, device=like.device).triu(1 + start)
        if is_real:
            _masks[key] = mask
    return mask


def _attend(*tensors: torch.Tensor, p: float, options: dict[str, Any]) -> torch.Tensor:
    """Attention to blocks; with dropout the factors of the weights are the first argument."""
    if p == 0.0:
        query, key, value, *mask = tensors
        return F.scaled_dot_product_attention(query, key, value, *mask, **options)
    kept, query, key, value, *mask = tensors
    if options["enable_gqa"] and query.dim() > 2:
        key, value = (heads.repeat_interleave(query.shape[-3] // heads.shape[-3], -3) for heads in (key, value))
    scale = query.shape[-1] ** -0.5 if options["scale"] is None else options["scale"]
    scores = query * scale @ key.mT
    if mask:
        scores = scores.masked_fill(~mask[0], -torch.inf) if mask[0].dtype == torch.bool else scores + mask[0]
    return scores.softmax(-1) * kept @ value


@rule_for("MultiheadAttention")
def multihead(node: Node) -> Operation:
    """Batch and queries; without a batch, queries. Keys and values are in as many blocks along the sequence."""
    names = ["query", "key", "value", "key_padding_mask", "need_weights", "attn_mask"]
    named = options_of(node, names)
    query, key = named["query"], named["key"]
    n = len(query.shape)
    features = n - 1
    sequence = 0 if n == 2 or not node.module.batch_first else 1
    batch = None if n == 2 else 1 - sequence
    of_keys = Sharded(sequence, span=functools.partial(_in_proportion, query.shape[sequence], key.shape[sequence]))
    tokens = [Sharded(batch) if d == batch else None for d in range(n)]
    of_queries, of_others = (
        tuple(None if d == features else along if d == sequence else tokens[d] for d in range(n))
        for along in (Sharded(sequence), Sharded(sequence) if key.shape == query.shape else of_keys)
    )
    mask = named.get("attn_mask")
    if mask is not None and len(mask.shape) == 3 and batch is not None:
        rows: InputSpec = (Sharded(batch, Fraction(node.module.num_heads)), Sharded(sequence), None)
    else:
        rows = (Sharded(sequence), None) if mask is None or len(mask.shape) == 2 else (None, Sharded(sequence), None)
    padding: InputSpec = (of_others[sequence],) if batch is None else (Sharded(batch), of_others[sequence])
    specs = {"query": of_queries, "key": of_others, "value": of_others, "attn_mask": rows, "key_padding_mask": padding}
    order = [name for name, value in named.items() if isinstance(value, Value)]

    def placements(workers: Workers) -> Blocks | list[Blocks]:
        if len(node.outputs) == 1:
            return workers.blocks
        return [workers.blocks, _of_weights(workers.blocks, node.outputs[1].shape, sequence, batch)]

    parameters = map(whole, node.parameters.values())
    return layer_operation(node, query.shape, [*(specs[name] for name in order), *parameters], [features], placements)


def _in_proportion(queries: int, keys: int, start: int, stop: int) -> Interval:
    """The keys of a worker; their number need not be the number of queries."""
    return start * keys // queries, stop * keys // queries


def _of_weights(blocks: Blocks, shape: Sequence[int], sequence: int, batch: int | None) -> Blocks:
    """The blocks of attention weights: rows of queries by columns of all keys, after a batch and perhaps heads."""
    dims = ([] if batch is None else [batch]) + [None] * (len(shape) - 2 - (batch is not None)) + [sequence, None]
    block_sizes = tuple((n,) if d is None else blocks.block_sizes[d] for d, n in zip(dims, shape, strict=True))
    return Blocks(blocks.ranks_along(dims, tuple(map(len, block_sizes))), block_sizes)
