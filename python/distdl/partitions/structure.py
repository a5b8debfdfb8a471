"""The structure of a rank's tensor, and tensors for ranks that have no part of the global tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from distdl import _core


def zero_volume_tensor(
    batch: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """A tensor for a rank that has no part of the global tensor, of shape [batch, 0], or [0] without a batch.

    The other arguments are those of ``torch.empty``. No other rank has to call it.
    """
    shape = (0,) if batch is None else (batch, 0)
    return torch.empty(shape, dtype=dtype, device=device, requires_grad=requires_grad)


@dataclass(frozen=True)
class TensorStructure:
    """The structure of a rank's tensor, on which the set-up of a layer depends."""

    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool

    def __init__(self, tensor: torch.Tensor) -> None:
        object.__setattr__(self, "shape", tensor.shape)
        object.__setattr__(self, "dtype", tensor.dtype)
        object.__setattr__(self, "requires_grad", tensor.requires_grad)


@contextmanager
def structure_check(enabled: bool) -> Iterator[None]:
    """Turn the check of the global structure off (or on) for a block of code.

    Before data moves, the ranks of an operator check in a small reduction that they call the same operator, on an input
    of unchanged structure. Without the check, a difference among the ranks gives wrong results or a hang.

    Every rank of the operators inside has to use the same setting: the first call after it was turned off raises
    RuntimeError on all ranks if it differs. Changing it takes no communication.

    Example:
        >>> step(batch)  # agrees on every operator's structure
        >>> with distdl.structure_check(False):
        ...     for batch in batches_of_equal_shape:
        ...         step(batch)
    """
    before = _core.structure_check()
    _core.set_structure_check(enabled)
    try:
        yield
    finally:
        _core.set_structure_check(before)
