"""Values of tensors that a model computes from constants alone, and keeps from one call for the next."""

from __future__ import annotations

import torch

from distdl.models.capture.recording import Node, Recording, Value
from distdl.torch_compat.modes import without_modes
from distdl.torch_compat.trees import tree_flatten


class Constants:
    """Computes values of a recording that depend on no input, parameter, buffer or random number."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._computed: dict[Value, torch.Tensor | None] = {}

    def tensor_of(self, value: Value) -> torch.Tensor | None:
        """The values; None if they depend on others."""
        if value.constant is not None:
            return value.constant
        if value not in self._computed:
            node = self._recording.producer(value)
            if node is None:
                return None
            self._computed.update(dict.fromkeys(node.outputs))
            inputs = [self.tensor_of(own) for own in node.inputs]
            known = [tensor for tensor in inputs if tensor is not None]
            if len(known) == len(inputs) and not isinstance(node.target, torch.nn.Module):
                self._computed.update(zip(node.outputs, _results(node, known), strict=True))
        return self._computed[value]


def _results(node: Node, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The tensors that a call returns; None if it draws random numbers."""
    with without_modes(), torch.no_grad():
        state = torch.get_rng_state()
        inputs = [tensor.clone() if node.written else tensor for tensor in inputs]
        result = node.as_function()(*inputs)
        if not torch.equal(state, torch.get_rng_state()):
            torch.set_rng_state(state)
            return [None] * len(node.outputs)
    leaves = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
    return [*leaves] if node.key != "setitem" else [inputs[0]]
