"""Run steps in order on values in numbered slots, with activation checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch.autograd.function import FunctionCtx
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from distdl.models.capture.call_device import device_of_call, on_device
from distdl.models.capture.recording import Run


class Step(NamedTuple):
    """A step of a program.

    Attributes:
        reads, writes: the slots of its inputs and of its outputs.
        last: the slots that no later step uses.
        checkpoint: the number of its activation checkpoint; 0 for none.
        substitute: results in place of its own if it fails on this rank alone; None if others wait for it meanwhile.
    """

    run: Run
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    last: tuple[int, ...] = ()
    checkpoint: int = 0
    substitute: Callable[[Exception, Sequence[object]], object] | None = None


def run_steps(steps: Iterable[Step], values: list[object]) -> None:
    """Run steps on the values in slots."""
    for run, reads, writes, last, _, substitute in steps:
        try:
            result = run(*[values[slot] for slot in reads])
        except Exception as error:
            if substitute is None:
                raise
            result = substitute(error, [values[slot] for slot in reads])
        if len(writes) == 1:
            values[writes[0]] = result
        else:
            for slot, value in zip(writes, cast(list[object], result), strict=True):
                values[slot] = value
        for slot in last:
            values[slot] = None


def free_after_last_use(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    """The same steps, each of which frees the slots that no later step uses.

    Args:
        kept: the slots that are used after the last step.
    """
    steps_kept, seen = [], set(kept)
    for step in reversed(steps):
        last = tuple(slot for slot in dict.fromkeys((*step.reads, *step.writes)) if slot not in seen)
        seen.update(last)
        seen.difference_update(set(step.writes) - set(step.reads) - kept)
        steps_kept.append(Step(*step[:3], last, step.checkpoint, step.substitute))
    return steps_kept[::-1]


def before_checkpoint(steps: Sequence[Step], place: int) -> int:
    """The place of a step, or of the first step of its activation checkpoint."""
    while 0 < place < len(steps) and steps[place].checkpoint and steps[place - 1].checkpoint == steps[place].checkpoint:
        place -= 1
    return place


def group_checkpoints(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    """The same steps, with a single step for each checkpoint.

    Args:
        kept: the slots that are used after the last step.
    """
    groups = [(number, [*group]) for number, group in itertools.groupby(steps, lambda step: step.checkpoint)]
    steps_made: list[Step] = []
    after = set(kept)
    for number, group in reversed(groups):
        if number:
            written = {slot for step in group for slot in step.writes}
            writes = tuple(sorted(written & after))
            segment = Segment(group, writes)
            group = [Step(segment, segment.reads, writes)]
            after -= written
        steps_made += reversed(group)
        after.update(slot for step in group for slot in step.reads)
    return steps_made[::-1]


class Segment:
    """The steps of a checkpoint, which are computed again in the backward pass, on all ranks if on any.

    Attributes:
        reads: the slots that are written before these steps.
    """

    def __init__(self, steps: Sequence[Step], writes: Sequence[int]) -> None:
        written: set[int] = set()
        outside: list[int] = []
        for step in steps:
            outside += [slot for slot in step.reads if slot not in written]
            written.update(step.writes)
        self.reads = tuple(dict.fromkeys(outside))
        self._writes, self._count = writes, max([*outside, *written]) + 1
        kept = {*writes, *self.reads}
        self._steps = free_after_last_use(steps, kept)
        self._again = free_after_last_use([step for step in steps if not hasattr(step.run, "only_once")], kept)

    def __call__(self, *inputs: object) -> object:
        """Run the steps, and return their result or the list of their results."""
        with set_checkpoint_early_stop(False):  # some ranks would stop before an exchange
            run = partial(self._run, device_of_call())
            results = checkpoint(run, iter([self._steps]), *inputs, use_reentrant=False)
        return results[0] if len(self._writes) == 1 else results

    def _run(self, device: torch.device, first: Iterator[Sequence[Step]], *inputs: object) -> list[object]:
        """Run the steps, and in the backward pass those that give results."""
        values: list[object] = [None] * self._count
        for slot, tensor in zip(self.reads, inputs, strict=True):
            values[slot] = tensor
        with on_device(device):
            run_steps(next(first, self._again), values)
        return [_saving(values[slot]) for slot in self._writes]


def _saving(value: object) -> object:
    """The result, with a backward pass that makes the checkpoint compute the steps again on every rank."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return cast(torch.Tensor, _Saving.apply(value))
    return value


class _Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        assert len(ctx.saved_tensors) == 1
        return gradient
