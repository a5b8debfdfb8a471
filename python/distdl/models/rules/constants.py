"""New tensors, which each worker makes whole."""

from __future__ import annotations

from distdl.models.capture.recording import Node
from distdl.models.operations.operation import Operation
from distdl.models.operations.table import rule_for, whole


@rule_for(
    "arange", "empty", "eye", "full", "linspace", "logspace", "ones", "tensor", "zeros", "as_tensor", "scalar_tensor",
    "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "tril_indices", "triu_indices",
    "bartlett_window", "blackman_window", "fft_fftfreq", "fft_rfftfreq", "hamming_window", "hann_window",
    "kaiser_window", "range",
)  # fmt: skip
def made(node: Node) -> Operation:
    """Each worker makes the tensor, of whole tensors. A tensor with the method only gives dtype and device."""
    call = node.as_function()
    shape = node.outputs[0].shape
    like = node.args[0] if node.key.startswith("new_") else None
    specs = tuple(None if value is like else whole(value) for value in node.inputs)
    return Operation(shape, specs, lambda workers: call, frozenset())
