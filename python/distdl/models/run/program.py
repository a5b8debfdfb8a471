"""A planned computation with all that it input_regions: exchanges, layers and functions, one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from distdl.models.capture.recording import Value
from distdl.models.capture.replay import Run
from distdl.models.operations.placement import Blocks, Placement
from distdl.models.plan.planning import Plan, PlanStep
from distdl.models.plan.redistribution import ReadRegions, Redistribution, connected_empty
from distdl.models.run.buffers import BufferBroadcast
from distdl.models.run.computation import local_computation, on_a_copy
from distdl.models.run.steps import Step, before_checkpoint, free_after_last_use, group_checkpoints, run_steps
from distdl.nn.base.random_numbers import key_of_part
from distdl.parameters.layout import Layout
from distdl.parameters.transport import ParameterTransport
from distdl.torch_compat.trees import tree_flatten, tree_unflatten

_FRESH = frozenset(
    (*(f"{kind}{dims}d" for kind in ("Conv", "ConvTranspose", "conv", "conv_transpose", "BatchNorm")
       for dims in (1, 2, 3)),
     "SyncBatchNorm", "batch_norm", "Linear", "linear", "matmul", "add", "sub", "mul", "truediv", "div", "addmm",
     "addbmm", "addmv", "addr", "addcmul", "addcdiv", "subtract", "multiply")
)  # fmt: skip
"""Operations whose results are in memory of their own, whatever is in a block."""

_BUCKET = 1 << 20
"""Bytes of parameters that travel together, at least."""


class Program:
    """The steps of a rank in a call of the model.

    Args:
        plan: what is computed where.
        arrived: where the inputs of a call are, if not where the plan has them.
        buffers: those of the model, by name; each is asked for in each call.
        layouts: of the parameters, by name.

    Attributes:
        results: what the model returns, without its structure: values with their slots, and other objects with -1.

    Constructing and as_function are collective over the workers of the plan.
    """

    def __init__(
        self,
        plan: Plan,
        arrived: Sequence[Placement],
        buffers: Mapping[str, torch.Tensor],
        layouts: Mapping[str, Layout],
    ) -> None:
        self.plan = plan
        self._like, recording = plan.base, plan.recording
        self._redistributions: dict[tuple[Value, ReadRegions], int] = {}
        self.steps: list[Step] = []
        self._checkpoint = 0
        self._count = 0
        self._slots: dict[Value, int] = {}
        self.inputs = [self._slot(value) for value in recording.inputs]
        for value, source in zip(recording.inputs, arrived, strict=True):
            wanted = plan.placement(value)
            if isinstance(wanted, Blocks) and source != wanted:
                self._bring(value, source, wanted)
            elif isinstance(source, Blocks) and not isinstance(wanted, Blocks):
                self._step(self._to_all(value, source), (self._slots[value],), (self._slots[value],))
        self._constants: list[tuple[int, torch.Tensor]] = []
        self._buffers = buffers
        self._read: list[tuple[int, str]] = []  # buffers that operations use
        self._copied: set[int] = set()
        self._given: dict[int, Value] = {}  # parameters, by their slots
        self._of_layers = {
            name for step in plan.steps for name in step.node.buffers.values()
        }  # which these write themselves
        used = dict.fromkeys(value for step in plan.steps for value in step.node.inputs)
        results, self._structure = tree_flatten(recording.results)
        used.update(dict.fromkeys(value for value in results if isinstance(value, Value)))
        for value in used:
            if value not in self._slots and value not in plan.placements:
                self._provide(value)
        self.parameters = [value.name for value in self._given.values()]
        self._keys: list[int] = []
        self._fresh: set[Value] = set()  # that share their memory with nothing
        for step in plan.steps:
            self._checkpoint = step.node.checkpoint
            self._append(step)
        self._checkpoint = 0
        self._written = [(self._everywhere(value), name) for name, value in recording.written.items()]
        self.places = {value: self._owned(value) for value in results if isinstance(value, Value)}
        self.results = [(value, self._slots[value]) if isinstance(value, Value) else (value, -1) for value in results]
        self._deliver(layouts)
        kept = {slot for _, slot in self.results if slot >= 0} | {slot for slot, _ in self._written}
        self.steps = free_after_last_use(group_checkpoints(self.steps, kept), kept)

    def _slot(self, value: Value) -> int:
        if value not in self._slots:
            self._slots[value] = self._new()
        return self._slots[value]

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _provide(self, value: Value) -> None:
        """A parameter, a buffer or a constant."""
        slot = self._slot(value)
        if value.constant is not None:
            self._constants.append((slot, value.constant))
        elif value.name in self._buffers:
            self._read.append((slot, value.name))
            if value.name in self.plan.recording.written and value.name not in self._of_layers:
                self._copied.add(slot)  # backward passes look at what was there before
        else:
            self._given[slot] = value

    def _step(self, run: Run, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        self.steps.append(Step(run, reads, writes, checkpoint=self._checkpoint))

    def _deliver(self, layouts: Mapping[str, Layout]) -> None:
        """Bring parameters to the workers just before their first use.

        So backward passes send the gradients of a bucket away once they are complete, before those of the buckets that
        are used earlier are computed. Parameters that travelled at the beginning would give back theirs at the end.
        """
        for place, slots in reversed(self._buckets()):
            transport = ParameterTransport([layouts[self._given[slot].name] for slot in slots])
            if not transport.is_identity:
                self.steps.insert(before_checkpoint(self.steps, place), _delivery(transport, slots))

    def _buckets(self) -> list[tuple[int, list[int]]]:
        """The places of the steps before which parameters travel, and their slots.

        Those of a bucket have one dtype, and the same results have a derivative by them: a loss of some of the results
        gives all of them a gradient or none, as in one process, and no zeros to those that it does not depend on.
        """
        reached = self._reached()
        buckets: list[tuple[int, list[int]]] = []
        last: dict[object, list[int]] = {}  # of each kind
        waiting = dict(self._given)
        for place, reads in enumerate([*(step.reads for step in self.steps), self._given]):
            needed: dict[object, list[int]] = {}
            for slot in dict.fromkeys(slot for slot in reads if slot in waiting):
                value = waiting.pop(slot)
                needed.setdefault((value.dtype, reached.get(value, frozenset())), []).append(slot)
            for kind, slots in needed.items():
                if kind not in last or sum(self._given[slot].nbytes for slot in last[kind]) >= _BUCKET:
                    last[kind] = []
                    buckets.append((place, last[kind]))
                last[kind] += slots
        return buckets

    def _reached(self) -> dict[Value, frozenset[int]]:
        """The numbers of the results that have a derivative by a value; of none for values that are left out."""
        reached: dict[Value, frozenset[int]] = {}
        for i, (value, _) in enumerate(self.results):
            if isinstance(value, Value) and value.is_differentiable:
                reached[value] = reached.get(value, frozenset()) | {i}
        for step in reversed(self.plan.steps):
            results = [reached.get(value, frozenset()) for value in step.node.outputs if value.is_differentiable]
            reached_by_node = frozenset[int]().union(*results)
            for value in step.node.inputs if reached_by_node else ():
                reached[value] = reached.get(value, frozenset()) | reached_by_node
        return reached

    def _bring(self, value: Value, source: Placement, wanted: Blocks) -> None:
        """Bring a value from where it is to other blocks."""
        slot = self._slots[value]
        regions = ReadRegions(wanted.ranks, tuple(range(len(value.shape))), wanted.intervals)
        self._step(Redistribution("distribute", source, regions, value.shape, self._like), (slot,), (slot,))

    def _to_all(self, value: Value, source: Blocks) -> Run:
        """A function that brings a value to all workers, whatever workers without a block pass in its place."""
        like, ranks = self._like, source.ranks
        redistribution = Redistribution("distribute", source, ReadRegions.whole(like.ranks), value.shape, like)
        return lambda x: redistribution(x if like.me in ranks else connected_empty([x]))

    def _owned(self, value: Value) -> Blocks:
        """Where a result is. Of copies the first worker's counts, so that each element is in one block."""
        place = self.plan.placement(value)
        if isinstance(place, Blocks):
            return place
        first = Blocks.balanced(self._like.ranks[:1], (1,) * len(value.shape), value.shape)
        self._bring(value, place, first)
        return first

    def _everywhere(self, value: Value) -> int:
        """Where all workers have a value, behind the last step."""
        place, slot = self.plan.placement(value), self._new()
        bring: Run = self._to_all(value, place) if isinstance(place, Blocks) else lambda x: x
        self._step(bring, (self._slots[value],), (slot,))
        return slot

    def _append(self, step: PlanStep) -> None:
        node, buffers = step.node, self._buffers
        inputs = []
        for value, regions, source in zip(node.inputs, step.input_regions, step.sources, strict=True):
            slot = self._slots[value]
            if regions is not None:
                key = (value, regions)
                if key not in self._redistributions:
                    self._redistributions[key] = self._new()
                    redistribution = Redistribution(f"distribute({node.key})", source, regions, value.shape, self._like)
                    self._step(redistribution, (slot,), (self._redistributions[key],))
                slot = self._redistributions[key]
            inputs.append(slot)
        if step.operation.draw is not None:
            self._keys.append(self._new())
            inputs.insert(0, self._keys[-1])
        outputs = tuple(self._slot(value) for value in node.outputs)
        places = [self.plan.placement(value) for value in node.outputs]
        run = local_computation(step, places, self._like, buffers)
        for i, value in enumerate(node.inputs):
            if value in node.written and (step.input_regions[i] is not None or value not in self._fresh):
                run = on_a_copy(run, i + len(inputs) - len(node.inputs))
        if node.written or node.key in _FRESH:
            self._fresh.update(node.outputs)
        self._step(run, tuple(inputs), outputs)
        if BufferBroadcast.is_needed(step, buffers, self._like):
            self._step(BufferBroadcast(step, buffers, self._like), (), ())

    @property
    def is_random(self) -> bool:
        """Whether a call draws random numbers."""
        return bool(self._keys)

    def __call__(
        self, inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], key: int | None = None
    ) -> object:
        """The results of a call, in the structure that the model returns.

        Args:
            inputs, parameters: the blocks of the call, and what is on this rank of the parameters.
            key: from which the random numbers follow; None for those of torch in one process.
        """
        values: list[object] = [None] * self._count
        for slot, tensor in zip(self.inputs, inputs, strict=True):
            values[slot] = tensor
        for slot, parameter in zip(self._given, parameters, strict=True):
            values[slot] = parameter
        for slot, constant in self._constants:
            values[slot] = constant
        for slot, name in self._read:
            buffer = self._buffers[name]
            values[slot] = buffer.clone() if slot in self._copied else buffer
        for number, slot in enumerate(self._keys):
            values[slot] = None if key is None else key_of_part(key, number)
        run_steps(self.steps, values)
        for slot, name in self._written:
            buffer = self._buffers[name]
            if values[slot] is not buffer and self._like.active:
                buffer.copy_(cast(torch.Tensor, values[slot]))
        results = []
        for value, slot in self.results:
            y = values[slot] if slot >= 0 else value
            results.append(y.detach() if isinstance(y, torch.Tensor) and not value.is_differentiable else y)
        return tree_unflatten(results, self._structure)


def _delivery(transport: ParameterTransport, slots: Sequence[int]) -> Step:
    def run(*parameters: torch.Tensor) -> object:
        used = transport(parameters)
        return used if len(used) > 1 else used[0]

    return Step(run, tuple(slots), tuple(slots))
