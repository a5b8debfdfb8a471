"""Axes along which tensors are computed in blocks, through the functions of a computation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distdl.models.operations.operation import Operation, Sharded


@dataclass(frozen=True)
class Along:
    """The axes of a tensor.

    Attributes:
        axes: of each dimension; None for a dimension of size 1, or of a tensor from elsewhere.
        summed: those along which a block of the tensor is a part of a sum.
    """

    axes: tuple[int | None, ...]
    summed: frozenset[int] = frozenset()


class Axes:
    """The axes of all tensors of a computation. An axis is free if blocks along it are computed by themselves."""

    def __init__(self) -> None:
        self._same_as: list[int] = []
        self._bound: set[int] = set()

    def new(self, shape: Sequence[int]) -> Along:
        """A tensor of which nothing is known."""
        return Along(tuple(self._axis() if n != 1 else None for n in shape))

    @property
    def free(self) -> set[int]:
        """The numbers of the free axes."""
        bound = {self._number(axis) for axis in self._bound}
        return {self._number(axis) for axis in range(len(self._same_as))} - bound

    def numbers(self, tensor: Along) -> tuple[int | None, ...]:
        """The axes of a tensor by numbers, which are equal for equal axes."""
        return tuple(None if axis is None else self._number(axis) for axis in tensor.axes)

    def unite(self, first: Along, second: Along) -> None:
        """Let the dimensions of two tensors have the same axes."""
        if len(first.axes) != len(second.axes):
            self.bind((*first.axes, *second.axes))
            return
        for pair in zip(first.axes, second.axes, strict=True):
            self._united(pair)

    def bind(self, axes: Iterable[int | None]) -> None:
        """Let tensors not be split along axes."""
        self._bound.update(axis for axis in axes if axis is not None)

    def bind_twice(self, tensors: Iterable[Along]) -> None:
        """Bind the axes that a tensor has twice."""
        for numbers in map(self.numbers, tensors):
            self.bind(number for number in numbers if numbers.count(number) > 1)

    def end_gradient(self, gradient: Along, of_input: Along, result: Along) -> None:
        """Bind the axes along which the parts of a gradient do not give the whole by joining or adding them."""
        self.unite(gradient, of_input)
        own = {*self.numbers(of_input)}
        summed = {self._number(axis) for axis in gradient.summed}
        self.bind(axis for axis in self.numbers(result) if axis is not None and (axis in own) == (axis in summed))
        self.bind(axis for axis in summed if axis in own)

    def reduced(self, x: Along, dims: Sequence[int], kept: bool, is_sum: bool) -> Along:
        """The sum or the mean of a tensor over dimensions."""
        gone = {axis for d in dims if (axis := x.axes[d]) is not None}
        if not is_sum:
            self.bind(gone | x.summed)
        axes = [None if d in dims else axis for d, axis in enumerate(x.axes) if kept or d not in dims]
        return Along(tuple(axes), x.summed | gone if is_sum else frozenset())

    def of_operation(
        self, operation: Operation | None, inputs: Sequence[Along], shapes: Sequence[Sequence[int]], is_linear: bool
    ) -> list[Along]:
        """The axes of the results of an operation; None for the operation binds all axes of its inputs.

        Args:
            is_linear: whether sums of parts may be added after it.
        """
        summed = frozenset[int]().union(*(x.summed for x in inputs))
        if not is_linear:
            self.bind(summed)
        is_local = operation is not None and operation.draw is None and operation.placements is None
        if operation is None or not is_local or any(tuple(shape) != tuple(operation.shape) for shape in shapes):
            for x in inputs:
                self.bind(x.axes)
            return [Along((None,) * len(shape), summed) for shape in shapes]
        read: list[list[int | None]] = [[] for _ in operation.shape]
        for x, spec in zip(inputs, operation.input_specs, strict=True):
            for axis, part in zip(x.axes, spec or (), strict=spec is not None):
                is_own = isinstance(part, Sharded) and part.scale == 1 and part.span is None and not part.periodic
                if is_own and isinstance(part, Sharded) and part.dim in operation.splittable:
                    read[part.dim].append(axis)
                else:
                    self.bind([axis])
        axes = []
        for d, (n, joined) in enumerate(zip(operation.shape, read, strict=True)):
            axis = None if n == 1 else self._united(joined or [self._axis()])
            if d not in operation.splittable:
                self.bind([axis])
            axes.append(axis)
        return [Along(tuple(axes), summed)] * len(shapes)

    # Axes

    def _axis(self) -> int:
        self._same_as.append(len(self._same_as))
        return self._same_as[-1]

    def _number(self, axis: int) -> int:
        while self._same_as[axis] != axis:
            axis = self._same_as[axis]
        return axis

    def _united(self, several: Sequence[int | None]) -> int | None:
        """The axis that several are from now on. It is bound if a tensor from elsewhere is among them."""
        known = [self._number(axis) for axis in several if axis is not None]
        if len(known) < len(several):
            self.bind(known)
        for axis in known[1:]:
            self._same_as[self._number(axis)] = self._number(known[0])
        return known[0] if known else None
