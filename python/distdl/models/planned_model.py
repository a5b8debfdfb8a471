"""A model that is recorded once, and planned on any number of ranks in one process."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import torch

from distdl.models.capture.call_device import RECORDED
from distdl.models.capture.node_work import NodeWork, works_of
from distdl.models.capture.packing import by_parts
from distdl.models.capture.recording import Node
from distdl.models.capture.refused_looks import advising
from distdl.models.capture.skeleton import Skeleton
from distdl.models.capture.unrecorded import autocast
from distdl.models.operations.placement import input_placement
from distdl.models.plan.parameter_splits import packings, split_layouts
from distdl.models.plan.planning import Plan
from distdl.models.plan.requested import Request
from distdl.models.plan.rule_lookup import FALLBACKS
from distdl.models.rules.applied_layer import key_of_layer
from distdl.models.rules.observed import observed, unknown_nodes
from distdl.modules.module import refuse_distributed
from distdl.nn.base.options import check_choice, refuse_lazy
from distdl.parameters.layout import OF_MODELS, current_kind
from distdl.partitions.grid import Grid

Shape = tuple[int, ...]
PlannedInputs = list[tuple[Shape, torch.dtype]]
_WITHOUT_CALL = (
    'without a call there are no values: distribute(model, P_x, values="agree") computes such a model, and then '
    "report(model) says what it did"
)


class PlannedModel:
    """The recorded computation of a model, with the dtypes of autocast around it.

    Args:
        inputs: shapes and dtypes of the whole inputs.
        fallback: as in :func:`distdl.distribute`.
        in_blocks: the names of the parameters of attention that a plan splits.

    Attributes:
        inputs, recording: as recorded.
        works: the work of each node.

    Raises:
        NotImplementedError: if the model cannot be recorded.
    """

    def __init__(
        self, model: torch.nn.Module, inputs: PlannedInputs, fallback: str = "error", in_blocks: Collection[str] = ()
    ) -> None:
        check_choice("report", "fallback", fallback, FALLBACKS)
        self.inputs, self._model, self._fallback = inputs, model, fallback
        skeleton = Skeleton(model)
        call: object = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in inputs), {}
        split = {id(skeleton.model.get_parameter(name)) for name in in_blocks}
        with advising(_WITHOUT_CALL):
            self.recording = skeleton.record(call, inputs, partial(key_of_layer, in_blocks=split))
        nodes, buffers = unknown_nodes(self.recording), dict(model.named_buffers(remove_duplicate=False))
        self.recording.observed.update(zip(nodes, observed(self.recording, nodes, buffers, RECORDED), strict=True))
        self._autocast = next(filter(None, autocast().values()), None)
        self.works = works_of(self.recording, self._autocast)
        self._with_heads = {frozenset(in_blocks): self}
        modules = model.named_modules()
        self._attention = tuple(f"{name}." for name, each in modules if isinstance(each, torch.nn.MultiheadAttention))

    def for_request(self, base: Grid, requested: Mapping[str, Request]) -> tuple[Plan, Mapping[Node, NodeWork]]:
        """The plan on the workers of a grid, and the work of its nodes, with parameters in blocks where asked.

        Args:
            requested: grids and words of modules, by patterns of their names.

        Raises:
            ValueError: if the request cannot be followed.
        """
        layouts = split_layouts(self._model, requested, base, current_kind(OF_MODELS))
        heads = frozenset(name for name in layouts if name.startswith(self._attention))
        if heads not in self._with_heads:  # attention that is split along heads is recorded in another way
            self._with_heads[heads] = PlannedModel(self._model, self.inputs, self._fallback, heads)
        recorded = self._with_heads[heads]
        recording, works = recorded.recording, recorded.works
        if packed := packings(layouts):
            recording = by_parts(recording, packed)
            works = works_of(recording, self._autocast, works)
        placements = [input_placement(base.ranks, base.shape, shape) for shape, _ in self.inputs]
        plan = Plan(recording, base, placements, fallback=self._fallback, requested=requested, layouts=layouts)
        plan.refuse_unfollowed()
        return plan, works


def refuse_unplanned(name: str, model: object) -> None:
    """Refuse what cannot be planned.

    Raises:
        TypeError, ValueError: if it is no model of torch, or has layers over partitions or without shapes.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{name}: the model is of type {type(model).__name__}; it has to be a torch.nn.Module")
    refuse_lazy(name, model)
    refuse_distributed(name, model)


def inputs_of(name: str, model: torch.nn.Module, shapes: object) -> PlannedInputs:
    """The inputs in an argument that is a shape or a list of shapes, some of which may be tensors instead.

    Raises:
        ValueError: that starts with the names of the function and the argument, if it is neither.
    """
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.get_default_dtype())
    several = isinstance(shapes, list | tuple) and shapes and not isinstance(shapes[0], int)
    inputs: PlannedInputs = []
    for shape in shapes if several and isinstance(shapes, list | tuple) else [shapes]:
        if isinstance(shape, torch.Tensor):
            inputs.append((tuple(shape.shape), shape.dtype))
        elif isinstance(shape, list | tuple) and shape and all(type(n) is int and n >= 0 for n in shape):
            inputs.append((tuple(shape), dtype))
        else:
            raise ValueError(f"{name}={shapes!r}; it has to be a shape, or a list of shapes or tensors")
    return inputs


def first_of(grid: Grid, splits: Sequence[int]) -> Grid:
    """The first ranks of a grid, in another shape."""
    return grid.related(grid.ranks[: math.prod(splits)], splits)
