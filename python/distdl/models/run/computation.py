"""The computation of a rank in a step of a plan: of its block, of the whole result, or of an empty result."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence

import torch

from distdl.models.capture.call_device import RECORDED, device_of_call
from distdl.models.capture.recording import Node, Run, Value
from distdl.models.operations.operation import Workers
from distdl.models.operations.placement import REPLICATED, Blocks, Placement
from distdl.models.plan.box_steps import BoxStep
from distdl.models.plan.planning import Plan, PlanStep
from distdl.models.plan.redistribution import connected_empty
from distdl.models.rules.applied_layer import AppliedLayer
from distdl.models.run.call_failures import Substitute
from distdl.partitions.grid import Grid
from distdl.torch_compat.trees import tree_leaves


def local_computation(step: PlanStep, plan: Plan, buffers: Mapping[str, torch.Tensor]) -> tuple[Run, Substitute | None]:
    """The function from this rank's regions of the inputs to its blocks of the results. Collective over the workers.

    With it what gives results in its place if it fails, unless others wait for it meanwhile.

    Args:
        buffers: of the model, by name, for layers.
    """
    node, workers, like = step.node, step.workers, plan.base
    placements = [plan.placement(value) for value in node.outputs]
    if workers is REPLICATED:
        run = step.operation.make(None)
        member = like.active
    else:
        assert isinstance(workers, Blocks)
        run = step.operation.make(Workers(workers.grid(like), workers, like.me, like))
        member = like.me in workers.ranks
    is_layer = isinstance(run, AppliedLayer)
    if isinstance(run, AppliedLayer | BoxStep):
        run.use_buffers(buffers)
    if not is_layer and member and step.operation.placements is None:
        run = _skipping_empty(run, node.outputs, placements, like.me)
    count = len(node.outputs)
    if step.operation.draw is not None:
        run = _drawing(step, run if member else _empty_results(node.outputs), like)
    call = flat = _in_modes(node, run) if member or step.operation.draw is not None else _empty_results(node.outputs)
    if member and (count > 1 or not isinstance(node.results, Value)):

        def flat(*x: torch.Tensor) -> object:
            tensors = [leaf for leaf in tree_leaves(call(*x)) if isinstance(leaf, torch.Tensor)]
            return tensors if count > 1 else tensors[0]

    exchanges_nothing = step.operation.placements is None or step.operation.exchanges_nothing
    substitute = Substitute(node, flat, placements, like.me) if exchanges_nothing and not is_layer else None
    return _refusing_gradients(node, flat), substitute


def _in_modes(node: Node, run: Run) -> Run:
    """A call with the modes in which it was recorded: without gradients, or with autocast of its own."""
    if node.records_gradients and not node.autocast:
        return run

    def call(*x: torch.Tensor) -> object:
        with contextlib.ExitStack() as modes:
            if not node.records_gradients:
                modes.enter_context(torch.no_grad())
            for kind, dtype in node.autocast.items():
                own = device_of_call().type if kind == RECORDED.type else kind
                modes.enter_context(torch.autocast(own, dtype, enabled=dtype is not None))
            return run(*x)

    return call


def _refusing_gradients(node: Node, run: Run) -> Run:
    """A call that refuses tensors that require gradients, on all ranks, if torch has no derivative by them."""
    slots = [i - len(node.inputs) for i, value in enumerate(node.inputs) if value in node.underived]
    if not slots:
        return run

    def call(*x: torch.Tensor) -> object:
        if torch.is_grad_enabled() and any(x[slot].requires_grad for slot in slots):
            shapes = ", ".join(str(list(node.inputs[slot].shape)) for slot in slots)
            raise RuntimeError(
                f"distribute: torch has no derivative of {node.key} by its argument of shape {shapes}, which requires "
                f"gradients, in {node.source}; call its detach() before"
            )
        return run(*x)

    return call


def on_a_copy(run: Run, position: int) -> Run:
    """A call that writes into a copy of an input, as the input may share memory with values that must not change."""

    def call(*x: torch.Tensor) -> object:
        tensors = list(x)
        tensors[position] = tensors[position].clone()
        return run(*tensors)

    return call


def _skipping_empty(run: Run, outputs: Sequence[Value], placements: Sequence[Placement], rank: int) -> Run:
    """A call that returns empty results on a rank with empty blocks, which not all functions of torch accept."""
    shapes = [place.local_shape(rank) for place in placements if isinstance(place, Blocks)]
    if not shapes or not all(0 in shape for shape in shapes):
        return run

    def empty(*inputs: torch.Tensor) -> object:
        dtypes = [value.dtype for value in outputs]
        if torch.is_autocast_enabled(inputs[0].device.type):  # dtypes may differ from the recorded ones
            with contextlib.suppress(Exception), warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                leaves = tree_leaves(run(*inputs))
                dtypes = [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)]
        results = []
        for value, shape, dtype in zip(outputs, shapes, dtypes, strict=True):
            parts = inputs if value.is_differentiable else [tensor.detach() for tensor in inputs]
            results.append(connected_empty(parts, dtype).reshape(shape))
        return results if len(results) > 1 else results[0]

    return empty


def _drawing(step: PlanStep, run: Run, like: Grid) -> Run:
    """A function that draws the numbers of this worker's block, and passes them to the computation."""
    workers, draw = step.workers, step.operation.draw
    assert draw is not None
    shape = step.operation.shape
    if isinstance(workers, Blocks):
        intervals = workers.block(like.me) or ((0, 0),) * len(shape)
        member = like.me in workers.ranks
    else:
        intervals, member = tuple((0, n) for n in shape), like.active

    def drawn(key: int | None, *inputs: torch.Tensor) -> object:
        if not member and key is not None:
            return run(*inputs)
        device = inputs[0].device if inputs else device_of_call()
        numbers = draw(key, intervals, device)
        return run(numbers, *inputs) if member else run(*inputs)

    return drawn


def _empty_results(outputs: Sequence[Value]) -> Run:
    """A function for ranks without work: empty results that are connected with the inputs as on the workers."""

    def empty(value: Value, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        if not inputs:
            return torch.zeros(0, dtype=value.dtype, device=device_of_call())
        if not value.is_differentiable:
            return connected_empty([x.detach() for x in inputs], value.dtype)
        # With autocast the dtype may not be the recorded one; backward() needs to know whether a result is complex.
        return connected_empty(inputs, None if inputs[0].is_complex() == value.dtype.is_complex else value.dtype)

    if len(outputs) == 1:
        return lambda *inputs: empty(outputs[0], inputs)
    return lambda *inputs: [empty(value, inputs) for value in outputs]
