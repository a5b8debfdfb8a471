"""The device of a call: models are recorded on the CPU, and run where the tensors of the call are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from distdl.torch_compat.trees import tree_map, tree_map_only

Call = Callable[..., object]
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


def on_device_of_call(function: Call, leaves: Sequence[object], makes_tensors: bool) -> Call:
    """The function on the device of the call that runs, where its arguments name the one of the recording.

    Args:
        makes_tensors: whether it takes none: the tensors that a model makes are on the device of the call.
    """
    if not makes_tensors and not any(_is_recorded_device(leaf) for leaf in leaves):
        return function

    def run(*args: object, **kwargs: object) -> object:
        device = device_of_call()
        if device == RECORDED:
            return function(*args, **kwargs)
        args, kwargs = tree_map(lambda leaf: device if _is_recorded_device(leaf) else leaf, (args, kwargs))
        result = function(*args, **kwargs)
        return tree_map_only(torch.Tensor, lambda x: x.to(device), result) if makes_tensors else result

    return run


def _is_recorded_device(leaf: object) -> bool:
    return isinstance(leaf, torch.device) and leaf == RECORDED
