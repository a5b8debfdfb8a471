"""Look up the operation of each recorded node in the table of rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from distdl.models.capture.recording import Node, Recording, Value
from distdl.models.operations.operation import InputSpec, NoRuleError, Operation, RandomError, Sharded, Slice
from distdl.models.operations.table import function_of, known_rule, whole
from distdl.models.rules.assignments import written
from distdl.models.rules.autograd_functions import derived
from distdl.models.rules.observed import observed_operation

FALLBACKS = ("error", "gather")


def operations_of(recording: Recording, fallback: str, as_sequential: bool) -> tuple[list[Operation], list[Node]]:
    """The operations of all nodes, and the nodes that one worker computes for lack of a rule.

    Raises:
        NotImplementedError: that lists every call without a rule.
    """
    operations: list[Operation] = []
    missing: dict[tuple[str, str], list[Node]] = {}
    gathered: list[Node] = []
    depends_on_inputs = set(recording.inputs)
    for node in recording.nodes:
        is_constant = depends_on_inputs.isdisjoint(node.inputs)
        depends_on_inputs.update(() if is_constant else node.outputs)
        try:
            operations.append(_by_rule(node, is_constant, recording))
            if recording.observed.get(node) == ():
                gathered.append(node)
        except NoRuleError as reason:
            may_gather = fallback == "gather" and not (as_sequential and isinstance(reason, RandomError))
            if may_gather and not is_constant:
                gathered.append(node)
                operations.append(_on_one_worker(node))
            else:
                missing.setdefault((node.key, str(reason)), []).append(node)
    if missing:
        lines = "\n".join(f"  {_first_of(nodes)}: {reason}" for (_, reason), nodes in missing.items())
        count = sum(map(len, missing.values()))
        raise NotImplementedError(
            f"distribute: {count} {'call' if count == 1 else 'calls'} cannot be split:\n{lines}\n"
            "fallback='gather' computes them on one worker; distdl.models.rule registers a rule"
        )
    return operations, gathered


def _first_of(nodes: Sequence[Node]) -> str:
    """The first of calls that are refused for the same reason, and the number of the others."""
    return f"{nodes[0]}" if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more calls of {nodes[0].key}"


def _by_rule(node: Node, is_constant: bool, recording: Recording) -> Operation:
    """The operation as its rule describes it, as both passes of an autograd function show it, or as it was observed.

    Functions of constants need no rule: each worker computes them.
    """
    try:
        operation = _known_operation(node, recording)
        if len(operation.input_specs) != len(node.inputs):
            raise NoRuleError(f"{len(node.inputs)} tensors, where its rule knows {len(operation.input_specs)}")
        for value, spec in zip(node.inputs, operation.input_specs, strict=True):
            if spec is not None and not _covers(spec, value, operation.shape):
                raise NoRuleError(f"the shape {list(value.shape)}, which its rule takes for another one")
        for i, value in enumerate(node.inputs):
            if value.shape and not value.strides:  # such as a sparse table
                operation = _reading_whole(operation, i)
    except RandomError:
        raise
    except NoRuleError:
        if not is_constant or isinstance(node.target, torch.nn.Module):
            raise
        return _on_one_worker(node)
    return operation


def _known_operation(node: Node, recording: Recording) -> Operation:
    rule = known_rule(node)
    if rule is not None:
        return rule(node)
    kind, observed = function_of(node), recording.observed.get(node)
    if kind is not None and not isinstance(observed, tuple):
        return derived(node, kind, recording.derivations)
    if isinstance(observed, tuple):
        return observed_operation(node, observed)
    raise observed or NoRuleError("no rule")


def _reading_whole(operation: Operation, i: int) -> Operation:
    """The operation, of which each worker reads a whole input: a tensor that is not strided has no blocks."""
    spec = operation.input_specs[i] or ()
    if any(isinstance(dim, Slice) for dim in spec):
        return operation  # of a table alone
    dims = {dim.dim for dim in spec if isinstance(dim, Sharded)}
    specs = (*operation.input_specs[:i], (None,) * len(spec) if spec else None, *operation.input_specs[i + 1 :])
    kept, asked = operation.splittable - dims, operation.if_requested - dims
    return replace(operation, input_specs=specs, splittable=kept, if_requested=asked, summed=None)


def _covers(spec: InputSpec, value: Value, shape: Sequence[int]) -> bool:
    """Whether workers whose blocks cover a space of this shape read all of an input."""
    return len(spec) == len(value.shape) and all(
        not isinstance(dim, Sharded) or dim.span is not None or dim.scale * shape[dim.dim] == n
        for dim, n in zip(spec, value.shape, strict=True)
    )


def _on_one_worker(node: Node) -> Operation:
    """An operation that cannot be split."""
    call = node.as_function(written if node.key == "setitem" else None)
    return Operation(
        node.outputs[0].shape, tuple(whole(value) for value in node.inputs), lambda workers: call, frozenset()
    )
