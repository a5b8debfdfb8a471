"""Check that inputs are not written in place before the backward pass, as torch.nn does."""

from __future__ import annotations

import torch

from distdl.torch_compat.autograd import number_of_writes
from distdl.torch_compat.transforms import innermost_transform


def check_input_unmodified(layer: str, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The result of a layer whose twin in torch.nn saves its input. Its backward pass raises if the input was written.

    Workers may compute from a copy of the input, which a write does not change, or from parts of it, which torch's
    message would name. The input is not kept alive.

    Raises:
        RuntimeError: in the backward pass, on every rank that has written its input.
    """
    if not result.requires_grad or input.is_inference() or _is_traced():
        return result
    counter, shape = input.detach(), list(input.shape)
    counter.data = input.new_empty(0)  # counts the writes to the input without holding its memory
    version = number_of_writes(counter)

    def check(gradient: torch.Tensor) -> None:
        if number_of_writes(counter) != version:
            raise RuntimeError(
                f"{layer}: one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: the input, of shape {shape}, is at version {number_of_writes(counter)}; expected version "
                f"{version} instead"
            )

    result.register_hook(check)
    return result


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or innermost_transform() is not None
