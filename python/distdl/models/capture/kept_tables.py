"""Tensors that a model keeps from an earlier call: tables that depend on no input of that call."""

from __future__ import annotations

from dataclasses import replace

import torch

from distdl.models.capture.known_values import KnownValues
from distdl.models.capture.recording import Node, Recording, Value
from distdl.models.capture.tensors import RecordedTensors
from distdl.torch_compat.trees import tree_map_only


class KeptTables:
    """The tensors of a recorded call, for the recording of the next call.

    A table of parameters and buffers is computed anew in each call, by the nodes of the earlier recording.

    Args:
        recording, tensors, known: of the earlier call.
        without_gradients: the ids of tensors that a call without gradients has kept.
    """

    def __init__(
        self,
        recording: Recording,
        tensors: RecordedTensors,
        known: KnownValues,
        without_gradients: frozenset[int],
    ) -> None:
        self._recording, self._tensors, self._known = recording, tensors, known
        self._without_gradients = without_gradients

    def value(self, tensor: torch.Tensor, recording: Recording, tensors: RecordedTensors) -> Value | None:
        """The value of a tensor in the next recording; None if the tensor depends on an input or on random numbers."""
        if (constant := self._known.of_tensor(tensor)) is not None:
            return tensors.new(tensor, constant=constant)
        last = self._tensors.known(tensor)
        nodes, sources = self._known.computation(last)
        if last is None or sources is None:
            return None
        values = {}
        for source in sources:
            fake, constant = self._tensors.tensor_of(source), self._known.of(source)
            own = tensors.value(fake) if constant is None else tensors.new(fake, constant=constant)
            if own.name != source.name:
                return None  # the call has written into the buffer
            values[source] = own
        records = id(tensor) not in self._without_gradients
        for node in nodes:
            for output in node.outputs:
                value = tensors.new(self._tensors.tensor_of(output))
                values[output] = value if records else tensors.without_derivative(value)
            recording.add(_recomputed(node, values, records))
        recording.kept[id(tensor)] = [source.name for source in sources if source.name]
        return values[last]

    def sources(self, tensor: torch.Tensor) -> list[str] | None:
        """The names of the parameters and buffers on which a tensor depends; None if it depends on other things."""
        sources = self._known.computation(self._tensors.known(tensor))[1]
        return None if sources is None else [source.name for source in sources if source.name]


def _recomputed(node: Node, values: dict[Value, Value], records: bool) -> Node:
    args, kwargs, results, written, parameters, underived = tree_map_only(
        Value,
        lambda value: values[value],
        (node.args, dict(node.kwargs), node.results, node.written, dict(node.parameters), node.underived),
    )
    return replace(
        node, args=args, kwargs=kwargs, results=results, written=written, parameters=parameters, underived=underived,
        records_gradients=records and node.records_gradients, checkpoint=0,
    )  # fmt: skip
