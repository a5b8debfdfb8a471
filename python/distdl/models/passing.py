"""Results and objects that a program passes to the next call of a distributed model."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import cast

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from distdl.models.capture.passed_objects import objects_among, with_returned
from distdl.models.capture.recording import Value
from distdl.models.inputs import InputPartitions, PlacedInput, placed_inputs
from distdl.models.operations.placement import Placement
from distdl.models.run.program import Program
from distdl.nn.wrapped_module import ModuleCall, WrappedModule
from distdl.torch_compat.trees import register_holders, tree_leaves


class Passing(WrappedModule):
    """Lets results with more dimensions than P_x, and caches that the model fills, be passed to a later call.

    Attributes:
        program: of the last call.
    """

    program: Program | None
    _placements: MutableMapping[torch.Tensor, Placement] | None = None  # of results, as long as the program holds them
    _objects: Sequence[object] = ()  # of the call

    def placed(self, partitions: InputPartitions, call: ModuleCall) -> list[PlacedInput]:
        """Where the tensors of a call are."""
        return placed_inputs(self, partitions, call, self._placements or {})

    def compared_tensors(self, inputs: Sequence[object]) -> Sequence[object]:
        """The tensors of the call; all ranks compare where those are that the model has returned."""
        args, kwargs = cast(ModuleCall, inputs[0])
        self._objects = objects_among((*args, *kwargs.values()))
        if self._objects:
            register_holders(self._objects)
        tensors = super().compared_tensors(inputs)
        if self._placements:
            places = [self._placements.get(x) for x in tensors if isinstance(x, torch.Tensor)]
            self._other_arguments += f" {[place and _digest(place) for place in places]}" if any(places) else ""
        return tensors

    def _call_module(self, *args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling():  # which keeps nothing from call to call
            return super()._call_module(*args, **kwargs)
        try:
            results = super()._call_module(*args, **kwargs)
        finally:
            objects, self._objects = self._objects, ()
        if self.program is None:
            return results
        if self._placements is None:
            self._placements = WeakTensorKeyDictionary()
        if large := [*self._large_results(self.program)]:
            leaves = tree_leaves(results)
            for i, placement in large:
                if isinstance(leaves[i], torch.Tensor):
                    self._placements[leaves[i]] = placement
        returned = self.program.plan.recording.returned_objects
        return with_returned(results, objects, returned) if returned else results

    def _large_results(self, program: Program) -> Iterable[tuple[int, Placement]]:
        for i, (value, _) in enumerate(program.results):
            if isinstance(value, Value) and len(value.shape) > self.grid.dim:
                yield i, program.placements[value]


@lru_cache(64)
def _digest(place: Placement) -> str:
    """A text that is the same on all ranks for the same placement, and of no other one."""
    return sha256(repr(place).encode()).hexdigest()[:16]
