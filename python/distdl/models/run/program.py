"""The program of a rank: redistributions, layers and functions in the order of the plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch

from distdl.models.capture.assignments import Hook
from distdl.models.capture.call_device import RECORDED, device_of, on_device
from distdl.models.capture.recording import ModuleBoundary, Run, Value
from distdl.models.operations.placement import Blocks, Placement
from distdl.models.plan.planning import Plan, PlanStep
from distdl.models.plan.redistribution import Arrival, FromBlocks, ReadRegions, Redistribution, brought
from distdl.models.run.beside_vote import beside_vote
from distdl.models.run.buffers import BufferBroadcast, WriteBack, names_written
from distdl.models.run.call_failures import CallFailures, Substitute
from distdl.models.run.computation import local_computation, on_a_copy
from distdl.models.run.hooks import HookFailures, ObservedCall
from distdl.models.run.outcomes import OutcomeCheck, is_counted, rehearsal, undone
from distdl.models.run.parameter_buckets import results_reached, with_transports
from distdl.models.run.result_on_all_ranks import ResultOnAllRanks
from distdl.models.run.steps import Step, free_after_last_use, group_checkpoints, run_steps
from distdl.models.run.written_inputs import WrittenInputs
from distdl.nn.base.random_numbers import key_of_part
from distdl.parameters.layout import Layout
from distdl.progress_bars import with_progress
from distdl.torch_compat.trees import tree_flatten, tree_unflatten

_OWN_MEMORY = frozenset(
    (*(f"{kind}{dims}d" for kind in ("Conv", "ConvTranspose", "conv", "conv_transpose", "BatchNorm")
       for dims in (1, 2, 3)),
     "SyncBatchNorm", "batch_norm", "Linear", "linear", "matmul", "add", "sub", "mul", "truediv", "div", "addmm",
     "addbmm", "addmv", "addr", "addcmul", "addcdiv", "subtract", "multiply")
)  # fmt: skip
"""Operations whose results are in memory of their own, for all values of their inputs."""

Slots = tuple[int, ...]


class Program:
    """The steps of a rank in a call of the model. Values are in numbered slots.

    Args:
        plan: the plan of all ranks.
        arrived: the placements of the inputs as a call passes them; they are redistributed if the plan has others.
        buffers: of the model, by name. Each call looks them up again, since they may be replaced.
        layouts: of the parameters, by name.
        failures: of hooks, in all programs of the model: several may run in a call.

    Attributes:
        looks: at values, with the outcomes for which this program was made.
        results: the leaves of what the model returns: values with their slots, and other objects with -1.

    Constructing and calling are collective over the workers of the plan.
    """

    def __init__(
        self,
        plan: Plan,
        arrived: Sequence[Placement],
        buffers: Mapping[str, torch.Tensor],
        layouts: Mapping[str, Layout],
        failures: HookFailures,
    ) -> None:
        self.plan, self._like, self._buffers, self._failures = plan, plan.base, buffers, failures
        self.steps, self._key_slots = list[Step](), list[int]()
        self._slot_count = self._checkpoint = 0
        self._slots: dict[Value, int] = {}
        self._redistributed: dict[tuple[Value, ReadRegions], int] = {}
        self._in_own_memory: dict[Value, int] = {}  # for values that share no memory, the checkpoint that returns them
        exchange = plan.base.constructing_ranks().host_exchange()
        self._together, self._spans_hosts = CallFailures(exchange).raised_together, exchange.spans_hosts
        recording, self.looks = plan.recording, plan.recording.looks
        self._written = {name for step in plan.steps for name in names_written(step, buffers) if recording.looks}
        self._checks = {look.values[-1]: (number, look) for number, look in enumerate(recording.looks)}
        self.inputs = [self._slot(value) for value in recording.inputs]
        for i, (value, source) in enumerate(zip(recording.inputs, arrived, strict=True)):
            if i in recording.written:  # which backward passes do not see
                self._append(torch.clone, (self._slots[value],), (self._slots[value],))
            self._add_input(value, source)
        leaves, self._structure = tree_flatten(recording.results)
        outputs = [leaf for leaf in leaves if isinstance(leaf, Value)]
        self._add_sources(outputs)
        boundaries, self._blocks_within = deque(recording.boundaries), plan.blocks_within()
        for place, step in enumerate(with_progress("first call, set-up", plan.steps, self._like.rank == 0)):
            self._add_observed_calls(boundaries, place)
            self._checkpoint = step.node.checkpoint
            self._add_plan_step(step)
            self._add_outcome_checks(step)
        self._add_observed_calls(boundaries, len(plan.steps))
        self._checkpoint = 0
        written = recording.written.items()
        last = {key: self._last(x, arrived[key] if isinstance(key, int) else None) for key, x in written}
        self._written_slots = [(slot, name) for name, slot in last.items() if isinstance(name, str)]
        self._written_inputs = WrittenInputs({i: slot for i, slot in last.items() if isinstance(i, int)})
        self._write_back = WriteBack([name for _, name in self._written_slots], self.parameters, buffers, layouts)
        self.placements = {value: self._place_result(value) for value in dict.fromkeys(outputs)}
        self.results = [(leaf, self._slots[leaf] if isinstance(leaf, Value) else -1) for leaf in leaves]
        self._all_steps = with_transports(self.steps, self._parameters, results_reached(plan.steps, leaves), layouts)
        self._hooks: list[Hook] | None = None
        self.use_hooks([])
        self.beside_vote = beside_vote([] if self.looks else self.steps, self.inputs, [*self._parameters])

    def _slot(self, value: Value) -> int:
        if value not in self._slots:
            self._slots[value] = self._new_slot()
        return self._slots[value]

    def _new_slot(self) -> int:
        self._slot_count += 1
        return self._slot_count - 1

    def _append(self, run: Run, reads: Slots, writes: Slots, substitute: Substitute | None = None) -> None:
        self.steps.append(Step(run, reads, writes, checkpoint=self._checkpoint, substitute=substitute))

    def _add_input(self, value: Value, source: Placement) -> None:
        planned, slot = self.plan.placement(value), (self._slots[value],)
        if source != planned:
            self._append(brought(value.shape, source, planned, self._like), slot, slot)

    def _add_sources(self, outputs: Sequence[Value]) -> None:
        """Give slots to the parameters, buffers and constants of the model."""
        self._constants: list[tuple[int, torch.Tensor]] = []
        self._buffers_read: list[tuple[int, str, bool]] = []  # slots, names, and whether operations read a copy
        self._parameters: dict[int, Value] = {}
        written_by_layers = {name for step in self.plan.steps for name in step.node.buffers.values()}
        copied = self.plan.recording.written.keys() - written_by_layers  # for backward passes
        for value in dict.fromkeys([*(value for step in self.plan.steps for value in step.node.inputs), *outputs]):
            if value in self._slots or value in self.plan.placements:
                continue
            slot = self._slot(value)
            if value.constant is not None:
                self._constants.append((slot, value.constant))
            elif value.name in self._buffers:
                self._buffers_read.append((slot, value.name, value.name in copied))
            else:
                self._parameters[slot] = value
                if value.name in copied:
                    self._append(torch.clone, (slot,), (slot,))
        self.parameters = [value.name for value in self._parameters.values()]

    def _replication(self, value: Value, source: Blocks, ranks: Sequence[int]) -> Run:
        """A function that brings a whole value to ranks; it ignores tensors of workers without a block."""
        return FromBlocks("distribute", source, ReadRegions.whole(tuple(ranks)), value.shape, self._like)

    def _place_result(self, value: Value) -> Placement:
        """The placement of a result, to which it is brought."""
        place, wanted, slot = self.plan.placement(value), self.plan.result_placement(value), (self._slots[value],)
        if isinstance(wanted, Blocks):
            if place != wanted:
                self._append(brought(value.shape, place, wanted, self._like), slot, slot)
        else:
            self._append(ResultOnAllRanks(self.plan.blocks_of(value), value.shape, self._like), slot, slot)
        return wanted

    def _last(self, value: Value, place: Placement | None) -> int:
        """The slot with a value after the last step, at a place of the call, or without one whole on all workers."""
        if isinstance(place, Blocks) and len(place.ranks) == 1:  # each rank may have the whole
            run = self._replication(value, self.plan.blocks_of(value), self._like.constructors)
        else:
            run = brought(value.shape, self.plan.placement(value), place, self._like)
        self._append(run, (self._slots[value],), (slot := self._new_slot(),))
        return slot

    def _add_plan_step(self, step: PlanStep) -> None:
        """Append a step of the plan, after the redistributions of its inputs."""
        node, buffers, inputs = step.node, self._buffers, self._bring_inputs(step)
        if step.operation.draw is not None:
            self._key_slots.append(self._new_slot())
            inputs.insert(0, self._key_slots[-1])
        outputs = tuple(self._slot(value) for value in node.outputs)
        run, substitute = local_computation(step, self.plan, buffers)
        for i, value in enumerate(node.inputs):
            # What a step writes must not show in other values. Checkpoints return views of their values.
            is_own = step.input_regions[i] is None and self._in_own_memory.get(value) in (0, node.checkpoint)
            if value in node.written and not is_own:
                run = on_a_copy(run, i + len(inputs) - len(node.inputs))
        if node.written or node.key in _OWN_MEMORY:
            self._in_own_memory.update(dict.fromkeys(node.outputs, node.checkpoint))
        self._append(run, tuple(inputs), outputs, substitute)
        if BufferBroadcast.is_needed(step, buffers, self._like):
            self._append(BufferBroadcast(step, buffers, self._like), (), ())

    def _bring_inputs(self, step: PlanStep) -> list[int]:
        """Append the redistributions of a step's inputs, and return their slots. Between hosts all travel at once."""
        node, inputs, new = step.node, list[int](), list[tuple[Value, int, Redistribution]]()
        for value, regions, source in zip(node.inputs, step.input_regions, step.sources, strict=True):
            if regions is not None and (value, regions) not in self._redistributed:
                self._redistributed[value, regions] = self._new_slot()
                kind = FromBlocks if value in self.plan.parameters else Redistribution
                redistribution = kind(f"distribute({node.key})", source, regions, value.shape, self._like)
                new.append((value, self._redistributed[value, regions], redistribution))
            inputs.append(self._slots[value] if regions is None else self._redistributed[value, regions])
        started = [each for each in new if each[2].can_start]
        if self.plan.overlaps.keys().isdisjoint(node.outputs) and (len(started) < 2 or not self._spans_hosts):
            started = []
        for value, slot, redistribution in new:
            run: Run = redistribution.start if (value, slot, redistribution) in started else redistribution
            self._append(run, (self._slots[value],), (slot,))
        for _, slot, redistribution in started:
            self._append(Arrival(redistribution), (slot,), (slot,))
        return inputs

    def _add_outcome_checks(self, step: PlanStep) -> None:
        """Append a step that compares the outcome of a look, once its last value is there."""
        for value in step.node.outputs:
            if value not in self._checks:
                continue
            number, look = self._checks[value]
            replications = [self._replication(x, self.plan.blocks_of(x), self._like.constructors) for x in look.values]
            self._append(OutcomeCheck(number, look, replications), tuple(self._slots[x] for x in look.values), ())

    def _add_observed_calls(self, calls: deque[ModuleBoundary], place: int) -> None:
        """Append steps that call hooks of the modules whose calls begin or end before this step of the plan."""
        while calls and calls[0].place == place:
            self._checkpoint = calls[0].checkpoint
            observed = ObservedCall(calls.popleft(), self._slots, self._blocks_within, self._failures)
            self._append(observed, observed.reads, ())

    def use_hooks(self, hooks: list[Hook]) -> None:
        """Call these hooks on modules in the next calls, and no others. Concerns this rank only."""
        if self._hooks == hooks:
            return
        self._hooks = hooks
        used = [step for step in self._all_steps if not isinstance(step.run, ObservedCall) or step.run.choose(hooks)]
        kept = {slot for _, slot in self.results if slot >= 0} | {slot for slot, _ in self._written_slots}
        kept |= {*self._written_inputs.slots.values()}
        self.steps = free_after_last_use(group_checkpoints(used, kept), kept)

    def count(self) -> int:
        """The number of operations that were recorded."""
        return len(self.plan.steps)

    @property
    def is_random(self) -> bool:
        """Whether a call draws random numbers."""
        return bool(self._key_slots)

    def __call__(
        self, inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], key: int | None, hooks: list[Hook]
    ) -> object:
        """The results of a call, in the structure that the model returns.

        Args:
            inputs: this rank's blocks of the inputs.
            parameters: this rank's parts of the parameters.
            key: determines the random numbers; None for torch's numbers in one process.
            hooks: on modules, which are called.

        Raises:
            OtherOutcomeError: on all ranks, if a look has another outcome than in the program.
        """
        if self.plan.recording.is_open or (self._checks and is_counted()):
            self.use_hooks([])
            with rehearsal():
                self._run(inputs, parameters, key, rehearses=True)
        self.use_hooks(hooks)
        values = self._run(inputs, parameters, key, rehearses=False)
        self._failures.raise_first()
        if self._written_slots and self._like.active:
            self._write_back([values[slot] for slot, _ in self._written_slots], parameters)
        results = []
        for value, slot in self.results:
            y = values[slot] if slot >= 0 else value
            results.append(y.detach() if isinstance(y, torch.Tensor) and not value.is_differentiable else y)
        return tree_unflatten(results, self._structure)

    def _run(
        self, inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], key: int | None, rehearses: bool
    ) -> list[object]:
        """The values in all slots after the last step."""
        values: list[object] = [None] * self._slot_count
        device = device_of(inputs or parameters)
        tensors = [*zip((*self.inputs, *self._parameters), (*inputs, *parameters), strict=True), *self._constants]
        for slot, tensor in tensors if device == RECORDED else [(slot, x.to(device)) for slot, x in tensors]:
            values[slot] = tensor
        for slot, name, is_copied in self._buffers_read:
            buffer = self._buffers[name]
            values[slot] = buffer.clone() if is_copied else buffer
        for number, slot in enumerate(self._key_slots):
            values[slot] = None if key is None else key_of_part(key, number)
        with undone([self._buffers[name] for name in self._written], rehearses), self._together(), on_device(device):
            run_steps(self.steps, values)
            if not rehearses:
                self._written_inputs(inputs, values)
        return values
