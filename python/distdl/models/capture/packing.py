"""Packed parameters: several layers' weights in a row, of which each worker keeps its part of each layer.

The blocks of such a parameter are in another order than its rows, and so are those of a product with it. A recording is
changed such that what a model cuts out of the product comes from the worker's own block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from distdl.models.capture.recording import Node, Recording, Value
from distdl.torch_compat.trees import tree_leaves, tree_map_only

_VIEWS_OF_PACKED = ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze")


@dataclass(frozen=True)
class Packing:
    """A dimension that consists of equal parts, each of which is cut.

    Attributes:
        dim: the dimension.
        parts: the number of parts.
        sizes: of the blocks of a part. A block of the dimension has a block of each part.
        unit: the sizes are multiples of it.
    """

    dim: int
    parts: int
    sizes: tuple[int, ...]
    unit: int

    def unpack(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The parts of a tensor without values: their shapes count."""
        return x.chunk(self.parts, self.dim)

    def covering(self, start: int, stop: int) -> tuple[int, int]:
        """(start, stop) of the blocks of the dimension in which an interval of a part lies."""
        blocks = [*self._blocks(start, stop)]
        if not blocks:
            return self.parts * start, self.parts * start
        return self.parts * blocks[0][0], self.parts * blocks[-1][1]

    def take(self, x: torch.Tensor, start: int, stop: int) -> tuple[torch.Tensor, ...]:
        """An interval of each part, from the blocks in which it lies."""
        blocks = [*self._blocks(start, stop)]
        if not blocks:
            return (x.narrow(self.dim, 0, 0),) * self.parts
        pieces = x.split([self.parts * (last - first) for first, last in blocks], self.dim)
        by_part = [
            piece.unflatten(self.dim, (self.parts, last - first))
            for piece, (first, last) in zip(pieces, blocks, strict=True)
        ]
        whole = by_part[0] if len(by_part) == 1 else torch.cat(by_part, self.dim + 1)
        if whole.shape[self.dim + 1] != stop - start:
            whole = whole.narrow(self.dim + 1, start - blocks[0][0], stop - start)
        return whole.unbind(self.dim)

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        ends = itertools.accumulate(self.sizes)
        intervals = ((end - size, end) for end, size in zip(ends, self.sizes, strict=True))
        return ((first, last) for first, last in intervals if first < stop and last > start)


@dataclass
class _Packed:
    """A value in the order of blocks, and its parts, once any are needed."""

    value: Value
    packing: Packing
    parts: list[Value] | None = None


def by_parts(recording: Recording, packings: Mapping[str, Packing]) -> Recording:
    """The same computation, with packed parameters in the order of their blocks.

    Args:
        packings: of the parameters, by name.
    """
    return _Change(recording, packings).changed if packings else recording


class _Change:
    def __init__(self, recording: Recording, packings: Mapping[str, Packing]) -> None:
        self._packings, self._observed = packings, recording.observed
        self._numbers = itertools.count(1 + max(value.number for node in recording.nodes for value in node.outputs))
        self._packed: dict[Value, _Packed] = {}
        self._replaced: dict[Value, Value] = {}
        self.changed = Recording(recording.inputs, tables=recording.tables,
                                 returned_objects=recording.returned_objects)  # fmt: skip
        places = []
        for node in recording.nodes:
            places.append(len(self.changed.nodes))
            for value in node.inputs:
                if value.name in packings:
                    self._packed.setdefault(value, _Packed(value, packings[value.name]))
            self._change(node)
        places.append(len(self.changed.nodes))
        last = recording.nodes[-1]
        for leaf in tree_leaves((recording.results, dict(recording.written))):
            if isinstance(leaf, Value) and leaf in self._packed:
                self._join(leaf, last)
        self.changed.results = self._values_in(recording.results)
        self.changed.written = {name: self._replaced.get(value, value) for name, value in recording.written.items()}
        for look in recording.looks:
            own, named = tree_map_only(Value, lambda value: self._replaced.get(value, value), (look.args, look.kwargs))
            self.changed.looks.append(replace(look, args=own, kwargs=named))
        made = {*recording.inputs, *(value for node in self.changed.nodes for value in (*node.inputs, *node.outputs))}

        def seen(value: Value) -> Value | None:
            value = self._replaced.get(value, value)
            return value if value in made else None

        for at in recording.boundaries:
            args, kwargs, results = (tree_map_only(Value, seen, each) for each in (at.args, at.kwargs, at.results))
            self.changed.boundaries.append(
                replace(at, place=places[at.place], args=args, kwargs=kwargs, results=results)
            )

    def _change(self, node: Node) -> None:
        packing = self._packing_of_result(node)
        if packing is not None:
            y = node.outputs[0]
            self._packed[y] = _Packed(self._like(y), packing)
            self._add(node, self._packed[y].value, in_blocks=True)
            return
        part = self._part(node)
        if part is not None:
            self._replaced[node.outputs[0]] = part
            return
        for value in node.inputs:
            if value in self._packed:
                self._join(value, node)
        self._add(node, node.results)

    def _packing_of_result(self, node: Node) -> Packing | None:
        """The packing of the result of a product with a packed weight, or of a view of such a result."""
        packed = [self._packed.get(value) for value in node.inputs]
        if len(node.outputs) != 1 or node.written or not any(packed):
            return None
        y = node.outputs[0]
        if node.key in ("linear", "Linear"):
            weights, packings = packed[1:], [each.packing for each in packed[1:] if each is not None]
            fits = packed[0] is None and len(packings) == len(weights) and packings[0].dim == 0
        elif node.key == "transposed_linear":
            packings = [each.packing for each in packed if each is not None]
            fits = [each is None for each in packed] == [True, False, False] and packings[0].dim == 1
        elif (
            node.key in _VIEWS_OF_PACKED
            and packed[0] is not None
            and packed[0].packing.dim == len(node.inputs[0].shape) - 1
        ):
            packings = [packed[0].packing]
            fits = y.shape[-1:] == node.inputs[0].shape[-1:]
        else:
            return None
        return replace(packings[-1], dim=len(y.shape) - 1) if fits else None

    def _part(self, node: Node) -> Value | None:
        """The part that a node cuts out of a packed value."""
        x = node.inputs[0] if node.inputs else None
        if node.key != "narrow" or x is None or x not in self._packed:
            return None
        packing = self._packed[x].packing
        _, dim, start, length = node.args
        size = sum(packing.sizes)
        if dim % len(x.shape) != packing.dim or length != size or start % size:
            return None
        return self._parts(x, node)[start // size]

    def _parts(self, x: Value, near: Node) -> list[Value]:
        packed = self._packed[x]
        if packed.parts is None:
            size = sum(packed.packing.sizes)
            dim = packed.packing.dim
            shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
            packed.parts = [replace(self._like(x), number=next(self._numbers), shape=shape)
                            for _ in range(packed.packing.parts)]  # fmt: skip
            self._note(near, packed.packing.unpack, "unpack", (packed.value,), packed.parts)
        return packed.parts

    def _join(self, x: Value, near: Node) -> None:
        """Put a packed value together in the order of the program."""
        parts, dim = self._parts(x, near), self._packed[x].packing.dim
        if x in self._replaced:
            return
        whole = self._replaced[x] = self._like(x) if x.name else x
        self._note(near, torch.cat, "cat", (parts, dim), whole)

    def _like(self, value: Value) -> Value:
        return replace(value, number=next(self._numbers), name="")

    def _note(self, near: Node, target: object, key: str, args: Sequence[object], results: object) -> None:
        """Add a node that stands where another one does."""
        assert callable(target)
        self.changed.add(
            Node(target, key, tuple(args), {}, results, near.path, near.source, near.records_gradients, near.checkpoint,
                 near.autocast)
        )  # fmt: skip

    def _add(self, node: Node, results: object, in_blocks: bool = False) -> None:
        """Add a node of the program, which reads values in the order of blocks, or of the program."""

        def read(value: Value) -> Value:
            return (
                self._packed[value].value if in_blocks and value in self._packed else self._replaced.get(value, value)
            )

        if results is node.results and all(read(value) is value for value in (*node.inputs, *node.underived)):
            self._copy(node, node)
            return
        args, kwargs = tree_map_only(Value, read, (node.args, dict(node.kwargs)))
        parameters = {name: read(value) for name, value in node.parameters.items()}
        written, underived = (tuple(map(read, values)) for values in (node.written, node.underived))
        self._copy(
            node, replace(node, args=args, kwargs=kwargs, results=results, parameters=parameters, written=written,
                          underived=underived)
        )  # fmt: skip

    def _copy(self, node: Node, copy: Node) -> None:
        self.changed.add(copy)
        if node in self._observed:
            self.changed.observed[copy] = self._observed[node]

    def _values_in(self, results: object) -> object:
        return tree_map_only(Value, lambda value: self._replaced.get(value, value), results)
