"""Functions that no rule knows: operators of ``torch.library``, and functions with a derivative of their own.

They do not show what they compute. So they are called with random numbers: a dimension of the result may be split if an
index along it needs no other index of the inputs. Where no dimension may be split, one worker computes the result.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence

import torch

from distdl.models.capture.known_values import KnownValues
from distdl.models.capture.recording import CommonDim, Node, Recording, Run, Value
from distdl.models.operations.operation import NoRuleError, Operation, RandomError, Sharded
from distdl.models.operations.table import function_of, known_rule, local
from distdl.models.rules.autograd_functions import derived
from distdl.models.rules.trials import Trials
from distdl.torch_compat.autograd import autograd_again
from distdl.torch_compat.operators import is_operator
from distdl.torch_compat.trees import tree_map_only

_Tables = list[torch.Tensor | None]
Observed = tuple[CommonDim, ...] | NoRuleError


def unknown_nodes(recording: Recording) -> list[Node]:
    """The calls of operators and functions that no rule knows, and that depend on the inputs."""
    nodes, depends_on_inputs = list[Node](), set(recording.inputs)
    for node in recording.nodes:
        if not depends_on_inputs.isdisjoint(node.inputs):
            depends_on_inputs.update(node.outputs)
            if known_rule(node) is None and not _is_derived(node, recording):
                nodes.append(node)
    return nodes


def _is_derived(node: Node, recording: Recording) -> bool:
    """Whether there is another way than to observe a call."""
    kind = function_of(node)
    if kind is None:
        return not is_operator(node.target)
    try:
        derived(node, kind, recording.derivations)
    except NoRuleError:
        return False
    return True


def observed(
    recording: Recording, nodes: Sequence[Node], buffers: Mapping[str, torch.Tensor], device: torch.device
) -> list[Observed]:
    """The dimensions along which each of some nodes may be split, or why there is no telling.

    Args:
        buffers: of the model, by name: operators use them as tables of indices.
        device: on which the functions are called.
    """
    known, results = KnownValues(recording, buffers=buffers), dict[Node, Observed]()
    tables = {node: [known.of(value) for value in node.inputs] for node in nodes}
    for node in nodes:
        alike = (other for other in results if _is_same_call(node, other) and _are_same(tables[node], tables[other]))
        other = next(alike, None)
        results[node] = _observed(node, tables[node], device) if other is None else results[other]
    return [results[node] for node in nodes]


def dumps(results: Sequence[Observed]) -> str:
    """Write observations as a text for other ranks."""
    return json.dumps([
        [type(result).__name__, str(result)] if isinstance(result, NoRuleError) else
        [[dim.output, dim.inputs] for dim in result]
        for result in results
    ])  # fmt: skip


def loads(text: str) -> list[Observed]:
    """Read observations from their text."""
    kinds = {kind.__name__: kind for kind in (NoRuleError, RandomError)}
    return [
        kinds[result[0]](result[1]) if result and isinstance(result[0], str) else
        tuple(CommonDim(output, tuple(inputs)) for output, inputs in result)
        for result in json.loads(text)
    ]  # fmt: skip


def _observed(node: Node, tables: _Tables, device: torch.device) -> Observed:
    with contextlib.ExitStack() as modes:
        for mode in (torch.inference_mode(False), autograd_again(), torch.enable_grad()):
            modes.enter_context(mode)
        for kind, dtype in node.autocast.items():
            modes.enter_context(torch.autocast(kind, dtype, enabled=dtype is not None))
        try:
            return tuple(Trials(node, tables, device).common_dims())
        except NoRuleError as reason:
            return reason


def observed_operation(node: Node, dims: Sequence[CommonDim]) -> Operation:
    """The dimensions that were observed."""
    specs = []
    for i, value in enumerate(node.inputs):
        own = {dim.inputs[i]: Sharded(dim.output) for dim in dims}
        specs.append(tuple(own.get(d) for d in range(len(value.shape))))
    others = set(range(len(node.outputs[0].shape))) - {dim.output for dim in dims}
    return local(node, specs, others, _in_recorded_order(node))


def _in_recorded_order(node: Node) -> Run:
    """The call with inputs in the order of memory that they have in one process: kernels may not look at strides."""
    call, orders = node.as_function(), [_order(value) for value in node.inputs]
    return lambda *tensors: call(*map(_with_order, tensors, orders))


def _order(value: Value) -> list[int]:
    strides = value.strides
    return sorted(range(len(strides)), key=lambda d: -strides[d])


def _with_order(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    if x.dim() != len(order):  # has no strides
        return x
    return x.permute(order).contiguous().permute([order.index(d) for d in range(x.dim())])


def _is_same_call(node: Node, other: Node) -> bool:
    """Whether two nodes call the same function with the same options, and tensors of the same kinds."""
    kinds = [[(x.shape, x.dtype, x.strides, x.is_differentiable) for x in call.inputs] for call in (node, other)]
    return node.target == other.target and kinds[0] == kinds[1] and _options(node) == _options(other)


def _options(node: Node) -> str:
    numbers = {value: i for i, value in enumerate(node.inputs)}
    options = tree_map_only(Value, numbers.__getitem__, (node.args, dict(node.kwargs)))
    return repr((options, node.records_gradients, node.autocast, len(node.outputs)))


def _are_same(tables: _Tables, others: _Tables) -> bool:
    pairs = zip(tables, others, strict=True)
    return all(x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)
