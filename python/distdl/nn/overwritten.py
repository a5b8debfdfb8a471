"""Inputs that are written in place after a call: the backward pass raises, as that of torch.nn does."""

from __future__ import annotations

import weakref

import torch

_version_of = torch.Tensor._version.__get__


def unless_overwritten(layer: str, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The result of a layer whose twin in torch.nn saves its input. Its backward pass raises if the input was written.

    Some workers compute from a copy of the input, in which nobody would notice, and others from parts of it, of which
    torch's message would speak. The input is not kept alive.

    Raises:
        RuntimeError: in the backward pass, on every rank that has written its input.
    """
    if not result.requires_grad or input.is_inference() or _is_traced():
        return result
    kept, version = weakref.ref(input), _version_of(input)

    def check(gradient: torch.Tensor) -> None:
        x = kept()
        if x is not None and _version_of(x) != version:
            raise RuntimeError(
                f"{layer}: one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: the input, of shape {list(x.shape)}, is at version {_version_of(x)}; expected version "
                f"{version} instead"
            )

    result.register_hook(check)
    return result


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None
