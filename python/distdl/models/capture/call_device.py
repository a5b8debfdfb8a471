"""The device of a call: models are recorded on the CPU, and run where the tensors of the call are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

RECORDED = torch.device("cpu")
"""The device of all tensors while a model is recorded: this object, and no text, stands for the device of a call."""

_device: ContextVar[torch.device] = ContextVar("device", default=RECORDED)


def device_of_call() -> torch.device:
    """The device of this rank in the call that runs now."""
    return _device.get()


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """The first device among tensors that is not the CPU; the CPU if there is none."""
    return next((x.device for x in tensors if x.device.type not in ("cpu", "meta")), RECORDED)


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Run calls of functions on a device."""
    token = _device.set(device)
    try:
        yield
    finally:
        _device.reset(token)
