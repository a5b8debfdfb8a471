"""Write into the tensors of a call what the model has written into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from distdl.models.operations.failures import defer_to_end
from distdl.torch_compat.memory import address_range


class WrittenInputs:
    """Writes into the blocks of the caller, after a call.

    A block that asks for gradients stays as it is: torch refuses to write into it, or gives it a derivative.

    Args:
        slots: of the last values, by the numbers of the tensors of the call.
    """

    def __init__(self, slots: Mapping[int, int]) -> None:
        self.slots = slots

    def __call__(self, inputs: Sequence[torch.Tensor], values: Sequence[object]) -> None:
        """Write the values that this rank has. What it raises all ranks raise at the end of the call."""
        if not self.slots:
            return
        try:
            for i in self.slots:
                _refuse_shared(inputs, i)
            with torch.no_grad():
                for i, slot in self.slots.items():
                    block, new = inputs[i], values[slot]
                    if isinstance(new, torch.Tensor) and new.shape == block.shape and not block.requires_grad:
                        block.copy_(new)
        except Exception as error:
            defer_to_end(error)


def _refuse_shared(inputs: Sequence[torch.Tensor], written: int) -> None:
    first, last = address_range(inputs[written])
    for i, other in enumerate(inputs):
        start, end = address_range(other)
        if i != written and start < last and first < end:
            raise NotImplementedError(
                f"distribute: the model writes into a tensor of shape {list(inputs[written].shape)}, which shares "
                "memory with another tensor of the call; pass a clone"
            )
