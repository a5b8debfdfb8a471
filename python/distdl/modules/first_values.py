"""Facts about the first parameters of a layer, and the checks that its first call makes."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from distdl.torch_compat.autograd import number_of_writes


class FirstValues(NamedTuple):
    """The checksum of the generator's state before parameters were drawn, and their versions afterwards."""

    drawn_from: int
    versions: list[int]


first_call_checks: list[Callable[[torch.nn.Module, FirstValues, Sequence[object]], None]] = []
"""Functions of a layer, its first values and its arguments, called in its first call. Collective over its ranks."""


def checksum(tensor: torch.Tensor, least: int = 2) -> int:
    """A checksum of the values; 0 if the tensor is too small or constant to identify."""
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized or tensor.numel() < least:
        return 0
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
    return 0 if bool((flat == flat[0]).all()) else zlib.crc32(flat.view(torch.uint8).numpy().tobytes())


def versions(module: torch.nn.Module) -> list[int]:
    """The number of writes to each parameter."""
    return [number_of_writes(parameter) for parameter in module.parameters()]


def forget_draws(module: torch.nn.Module) -> None:
    """Stop comparing the generators that drew parameters: the parameters were loaded from one rank."""
    for part in module.modules():
        if (first := getattr(part, "first_values", None)) is not None:
            part.first_values = FirstValues(0, first.versions)


@contextlib.contextmanager
def without_first_call_checks(module: torch.nn.Module) -> Iterator[None]:
    """Make no such checks, in calls that a compiler makes."""
    layers = [part for part in module.modules() if getattr(part, "first_values", None) is not None]
    values = [part.first_values for part in layers]
    try:
        for part in layers:
            part.first_values = None
        yield
    finally:
        for part, value in zip(layers, values, strict=True):
            part.first_values = value
