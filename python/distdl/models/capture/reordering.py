"""Bring recordings of the same computation into the same order.

A program that iterates over a set of texts, such as the kinds of a model's layers, goes through it in another order in
each process. Its calls are the same, but for their order.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from distdl.models.capture.listing import line_of_constant, without_addresses
from distdl.models.capture.recording import ModuleBoundary, Node, Recording, Value
from distdl.torch_compat.trees import tree_map_only

Tree = TypeVar("Tree")
_RANDOM = re.compile("rand|drop|normal|uniform|bernoulli|multinomial|poisson|exponential|geometric|cauchy")


class Names:
    """Names of the calls and values of a recording, which do not depend on the order of independent calls.

    Calls with equal names have equal results, unless they are random, have derivatives or are written into: these
    are numbered.
    """

    def __init__(self, recording: Recording) -> None:
        self._of_values = {value: f"input {i}" for i, value in enumerate(recording.inputs)}
        self._counts: Counter[str] = Counter()
        self._written = {value for node in recording.nodes for value in node.written}
        self.of_calls = [self._of_call(node) for node in recording.nodes]
        self.of_results = self._hash([self._described(recording.results), self._described(recording.written)])

    def _of_call(self, node: Node) -> str:
        parts = [node.args, dict(node.kwargs), dict(node.parameters), node.buffers, node.written]
        described = [self._described(part) for part in parts]
        place = [node.key, node.path, node.records_gradients, node.checkpoint, node.autocast]
        name = self._hash([place, described, getattr(node.target, "extra_repr", str)()])
        is_own = any(value.is_differentiable or value in self._written for value in node.outputs)
        if is_own or _RANDOM.search(node.key.lower()):
            self._counts[name] += 1
            name = self._hash([name, self._counts[name]])
        self._of_values.update({value: f"{name} {i}" for i, value in enumerate(node.outputs)})
        return name

    def _described(self, part: object) -> object:
        return tree_map_only(Value, self._of_value, part)

    def _of_value(self, value: Value) -> str:
        if value not in self._of_values:
            constant = "" if value.constant is None else line_of_constant(value).partition(" of ")[2]
            self._of_values[value] = f"{value.name} {value.shape} {constant}"
        return self._of_values[value]

    @staticmethod
    def _hash(parts: object) -> str:
        return hashlib.sha256(without_addresses(repr(parts)).encode()).hexdigest()[:20]


def in_order_of(recording: Recording, names: Sequence[str]) -> None:
    """Bring the calls of a recording into the order of these names; there are as many calls of each name."""
    places = defaultdict(list)
    for i, name in enumerate(Names(recording).of_calls):
        places[name].append(i)
    rest = {name: iter(own) for name, own in places.items()}
    order = [next(rest[name]) for name in names]
    place_of = {old: new for new, old in enumerate(order)}
    # Calls of equal names have equal results, of which the first is used on all ranks.
    firsts = {i: min(own, key=lambda i: place_of[i]) for own in places.values() for i in own}
    nodes = recording.nodes
    replaced = {
        value: first
        for i, node in enumerate(nodes)
        for value, first in zip(node.outputs, nodes[firsts[i]].outputs, strict=True)
        if firsts[i] != i
    }

    def rewired(part: Tree) -> Tree:
        changed: Tree = tree_map_only(Value, lambda value: replaced.get(value, value), part)
        return changed

    boundaries = _moved(recording.boundaries, place_of)
    recording.nodes, recording.boundaries = [], boundaries
    for i in order:
        args, kwargs = rewired((nodes[i].args, dict(nodes[i].kwargs)))
        recording.add(replace(nodes[i], args=args, kwargs=kwargs) if replaced else nodes[i])
    recording.results = rewired(recording.results)
    recording.written = {name: replaced.get(value, value) for name, value in recording.written.items()}


def _moved(boundaries: Sequence[ModuleBoundary], place_of: dict[int, int]) -> list[ModuleBoundary]:
    """The beginnings and ends of modules' calls, around their calls in another order."""
    moved: list[tuple[int, int, ModuleBoundary]] = []
    begun: list[int] = []
    for i, boundary in enumerate(boundaries):
        if not boundary.is_after:
            begun.append(boundary.place)
            stop = next((each.place for each in _end_of(boundaries[i:])), boundary.place)
            within = [place_of[j] for j in range(boundary.place, stop)]
            moved.append((min(within, default=boundary.place), i, boundary))
        else:
            within = [place_of[j] for j in range(begun.pop(), boundary.place)]
            moved.append((max(within, default=boundary.place - 1) + 1, i, boundary))
    return [replace(boundary, place=place) for place, _, boundary in sorted(moved, key=lambda each: each[:2])]


def _end_of(boundaries: Sequence[ModuleBoundary]) -> list[ModuleBoundary]:
    """The end of the call that begins first."""
    depth = 0
    for boundary in boundaries:
        depth += -1 if boundary.is_after else 1
        if depth == 0:
            return [boundary]
    return []
