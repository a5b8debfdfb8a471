"""Estimate the memory of a rank in a step of training: what lives when, forward, backward, and in the optimizer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping

import torch

from distdl.models.capture.node_work import NodeWork, Saved
from distdl.models.capture.recording import Node, Value
from distdl.models.plan.planning import Plan, PlanStep
from distdl.models.plan.rank_sizes import RankSizes, elements_of
from distdl.models.plan.step_memory import StepMemory
from distdl.models.plan.tensor_use import TensorUse
from distdl.models.plan.training import Training
from distdl.torch_compat.trees import tree_leaves

PASSING_GRADIENTS = frozenset(("add", "iadd", "cat", "concat", "clone", "sub"))
"""Functions whose gradients are the gradient of the result, or views of it."""


def fullest_rank(plan: Plan, works: Mapping[Node, NodeWork], training: Training) -> RankTimeline:
    """The memory of the fullest among the first, a middle and the last worker.

    Args:
        works: the work of each node.
    """
    ranks, shape = plan.base.ranks, plan.base.shape
    middle = plan.base.worker([p // 2 for p in shape])
    looked_at = dict.fromkeys((ranks[0], ranks[middle], ranks[-1]))
    timelines = [RankTimeline(plan, works, rank, training) for rank in looked_at]
    return max(timelines, key=lambda timeline: timeline.fullest.total)


class RankTimeline:
    """The memory of a rank at each moment: step i is moment i, and its backward pass moment 2 n - 1 - i.

    Attributes:
        kept: bytes that each step keeps for its backward pass; a tensor counts at the first step that keeps it.
        fullest: what the rank holds at the moment of the largest sum.
    """

    def __init__(self, plan: Plan, works: Mapping[Node, NodeWork], rank: int, training: Training) -> None:
        self._plan, self._works, self._rank = plan, works, rank
        self._n = len(plan.steps)
        self._end = 2 * self._n  # the optimizer's step
        self._changes: dict[str, Counter[int]] = {}
        self._roots: dict[Value, Value] = {}  # values whose memory other values share
        dtypes: dict[Value, torch.dtype] = {}
        self._segments: dict[int, list[int]] = {}  # the steps of each checkpoint
        for i, step in enumerate(plan.steps):
            work = works[step.node]
            dtypes.update(work.dtypes)
            self._roots.update({result: self._root(value) for result, value in work.shares.items()})
            if step.node.checkpoint:
                self._segments.setdefault(step.node.checkpoint, []).append(i)
        self._sizes = RankSizes(plan, rank, dtypes)
        self._reads = [self._sizes.reads(step) for step in plan.steps]
        self._received = [self._sizes.received(step) for step in plan.steps]
        self.kept = [0] * self._n
        self._parameters(training.layout, training.copies)
        self._values()
        self._gradients()
        self.fullest = self._fullest()

    def _fullest(self) -> StepMemory:
        sums = dict.fromkeys(self._changes, 0)
        best = StepMemory()
        for moment in range(self._end + 1):
            for part, changes in self._changes.items():
                sums[part] += changes[moment]
            now = StepMemory(**sums)
            best = max(best, now, key=lambda memory: memory.total)
        return best

    def _hold(self, part: str, nbytes: float, first: int, last: int) -> None:
        changes = self._changes.setdefault(part, Counter())
        changes[first] += round(nbytes)
        changes[last + 1] -= round(nbytes)

    def _backward(self, i: int) -> int:
        return 2 * self._n - 1 - i

    def _root(self, value: Value) -> Value:
        return self._roots.get(value, value)

    def _parameters(self, kind: str, copies: float) -> None:
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        kept: set[Value] = set()
        for i, step in enumerate(self._plan.steps):
            for value in step.node.inputs:
                if value.name:
                    first.setdefault(value, i)
                    last[value] = i
            kept.update(s.value for s in self._works[step.node].saved if s.value is not None and not s.is_own)
        size = self._plan.base.size
        of_all = {"owner": float(self._rank == self._plan.base.ranks[0]), "sharded": 1 / size, "replicated": 1.0}[kind]
        asking = {value for work in self._works.values() for value in work.differentiated}
        largest = 0.0
        for value in first:
            nbytes, in_blocks = value.nbytes, self._plan.parameters.get(value)
            owned = (
                of_all
                if in_blocks is None
                else elements_of(in_blocks, value, self._rank) / max(1, math.prod(value.shape))
            )
            travels = size > 1 and in_blocks is None
            known = self._backward(first[value])
            self._hold("weights", nbytes * owned, 0, self._end)
            if travels and kind != "replicated":
                self._hold("copies", nbytes, first[value], known if value in kept else last[value])
            if value in asking:
                self._hold("optimizer", copies * nbytes * owned, 0, self._end)
                if travels:
                    self._hold("copies", nbytes, self._backward(last[value]), known)
                    self._hold("copies", nbytes, known, known)  # the message
                    self._hold("gradients", nbytes * owned, known, self._end)
                else:
                    self._hold("gradients", nbytes * owned, self._backward(last[value]), self._end)
                largest = max(largest, nbytes * owned)
        self._hold("passing", largest * min(copies, 2), self._end, self._end)

    def _values(self) -> None:
        """Hold inputs, results, and what is kept for backward passes."""
        leaves = tree_leaves(self._plan.recording.results)
        uses: dict[Hashable, TensorUse] = {}
        for value in self._plan.recording.inputs:
            uses[value] = TensorUse(self._sizes.bytes_of(value), 0, self._end)
        for i, step in enumerate(self._plan.steps):
            node, work = step.node, self._works[step.node]
            reads = self._reads[i]
            self._hold("passing", self._sizes.workspace(node), i, i)
            self._hold("passing", self._sizes.workspace(node, backward=True), self._backward(i), self._backward(i))
            for _, nbytes in self._received[i]:
                self._hold_messages(nbytes, i)
            for value in node.outputs:
                if self._root(value) is value:
                    uses[value] = TensorUse(self._sizes.bytes_of(value), i, i, node.checkpoint)
            for key, nbytes in reads.values():
                uses.setdefault(key, TensorUse(nbytes, i, i, node.checkpoint)).last = i
            for value in node.inputs:
                if (use := uses.get(self._root(value))) is not None:
                    use.last = max(use.last, i)
                    use.readers.add(node.checkpoint)
            for number, saved in enumerate(work.saved):
                self._save(uses, i, step, (node, number), saved, reads)
        for leaf in leaves:
            if isinstance(leaf, Value) and (use := uses.get(self._root(leaf))) is not None:
                use.last = self._end
        for number in self._segments:
            self._compute_again(number, [use for use in uses.values() if use.checkpoint == number])
        for use in uses.values():
            self._hold_use(use)
            if use.savers:
                self.kept[min(use.savers)] += use.nbytes

    def _save(
        self,
        uses: dict[Hashable, TensorUse],
        i: int,
        step: PlanStep,
        own: Hashable,
        saved: Saved,
        reads: Mapping[Value, tuple[Hashable, int]],
    ) -> None:
        """Note that step i keeps a tensor, if it is not a parameter, until its backward pass."""
        value = saved.value
        if value is not None and not saved.is_own:
            key: Hashable = reads[value][0] if value in reads else self._root(value)
            use = uses.get(key)
            if use is not None:
                use.savers.append(i)
            return
        share = self._sizes.share(step)
        if value is not None:  # a copy in another dtype
            whole = max(1, math.prod(value.shape)) * self._sizes.itemsize(value)
            share = (reads[value][1] if value in reads else self._sizes.bytes_of(value)) / whole
        uses[own] = TensorUse(round(saved.nbytes * share), i, i, step.node.checkpoint, [i])

    def _compute_again(self, checkpoint: int, uses: list[TensorUse]) -> None:
        """Hold what the kernels of a checkpoint need when it is computed again, beyond what it keeps in the end."""
        beyond = 0.0
        later = sum(use.nbytes for use in uses if use.savers)
        for i in self._segments[checkpoint]:
            later -= sum(use.nbytes for use in uses if use.savers and use.first == i)
            beyond = max(beyond, self._sizes.workspace(self._plan.steps[i].node) - later)
        moment = self._backward(self._segments[checkpoint][-1])
        self._hold("passing", beyond, moment, moment)

    def _hold_use(self, use: TensorUse) -> None:
        again = self._backward(self._segments[use.checkpoint][-1]) if use.checkpoint else None
        inside = [i for i in use.savers if self._plan.steps[i].node.checkpoint == use.checkpoint]
        ends = [self._backward(i) for i in use.savers if not self._plan.steps[i].node.checkpoint]
        ends += [self._backward(self._first_saving(number)) for number in use.readers - {0, use.checkpoint}]
        last = max(use.last, *ends, -1)
        is_kept = last >= self._n and bool(ends)
        self._hold("kept" if is_kept else "passing", use.nbytes, use.first, last)
        if again is not None and inside:
            self._hold("kept", use.nbytes, again, self._backward(min(inside)))

    def _first_saving(self, checkpoint: int) -> int:
        """The first step of a checkpoint that saves anything: until its backward pass torch keeps all inputs."""
        steps = self._segments[checkpoint]
        return next((i for i in steps if self._works[self._plan.steps[i].node].saved), steps[-1])

    def _gradients(self) -> None:
        """Hold the gradients of results between the backward passes of the users and of the maker."""
        groups: dict[Value, Value] = {}  # of values whose gradients are the same memory
        makers: dict[Value, int] = {}
        users: dict[Value, int] = {}
        sizes: dict[Value, int] = {}

        def group(value: Value) -> Value:
            while value in groups:
                value = groups[value]
            return value

        for i, step in enumerate(self._plan.steps):
            node, differentiated = step.node, self._works[step.node].differentiated
            if differentiated:
                moment = self._backward(i)
                for _, nbytes in self._reads[i].values():
                    self._hold("passing", nbytes, moment, moment)
                for value, nbytes in self._received[i]:
                    if value in differentiated and not value.name:
                        self._hold_messages(nbytes, moment)
            for value in node.inputs:
                if value in differentiated and not value.name:
                    users[group(value)] = i
            for value in node.outputs:
                if value not in differentiated:
                    continue
                makers[value], sizes[value] = i, self._sizes.bytes_of(value)
                for other in self._with_same_gradient(node, value):
                    other = group(other)
                    if other in makers and other is not value:
                        makers[value] = min(makers[value], makers.pop(other))
                        sizes[value] = max(sizes[value], sizes.pop(other))
                        groups[other] = value
        for leaf in tree_leaves(self._plan.recording.results):
            if isinstance(leaf, Value):
                users[group(leaf)] = self._n - 1
        for value, maker in makers.items():
            if value in users:
                self._hold("passing", sizes[value], self._backward(users[value]), self._backward(maker))

    def _hold_messages(self, nbytes: int, moment: int) -> None:
        """Hold what is sent and what is received in an exchange."""
        self._hold("copies", 2 * nbytes, moment, moment)

    def _with_same_gradient(self, node: Node, result: Value) -> list[Value]:
        """The inputs whose gradient is the gradient of the result, or a view of it."""
        if node.key in PASSING_GRADIENTS:
            return [value for value in node.arguments if value.shape == result.shape or node.key in ("cat", "concat")]
        shared = self._works[node].shares.get(result)
        return [] if shared is None or node.written else [shared]
