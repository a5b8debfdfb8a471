"""The structure of a tensor that can be filled later, and small functions on tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl.classic.slicing import *  # noqa: F403
from distdl.classic.tensor_decomposition import *  # noqa: F403
from distdl.partitions import structure


class TensorStructure:
    """Shape, dtype and requires_grad of a tensor; None where unknown. All of them may be assigned.

    Args:
        tensor: the tensor, or None for a structure that is filled later.
    """

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self.shape: Sequence[int] | None = None
        self.dtype: torch.dtype | None = None
        self.requires_grad: bool | None = None
        if tensor is not None:
            self.fill_from_tensor(tensor)

    def fill_from_tensor(self, tensor: torch.Tensor) -> None:
        """Take the structure of a tensor."""
        self.shape, self.dtype, self.requires_grad = tensor.shape, tensor.dtype, tensor.requires_grad

    def _values(self) -> tuple[object, ...]:
        shape = None if self.shape is None else tuple(int(n) for n in self.shape)
        return shape, self.dtype, self.requires_grad

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorStructure) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"TensorStructure(shape={self._values()[0]}, dtype={self.dtype}, requires_grad={self.requires_grad})"


def zero_volume_tensor(
    b: int | None = None,
    dtype: torch.dtype | bool | None = None,
    requires_grad: bool | torch.device | str = False,
    device: torch.device | str | bool | None = None,
    **options: object,
) -> torch.Tensor:
    """A tensor for a rank that has no part of the global tensor, of shape [b, 0], or [0] without b.

    Args:
        b: the size of the first dimension; ``batch=`` is the same.
        dtype, requires_grad, device: as in ``torch.empty``. A bool in the place of the dtype is requires_grad.
    """
    if isinstance(dtype, bool):  # (b, requires_grad) of the descendant
        dtype, requires_grad = None, dtype
    if not isinstance(requires_grad, bool):  # (batch, dtype, device, requires_grad) of this library
        requires_grad, device = bool(device), requires_grad
    b = options.pop("batch", b)  # type: ignore[assignment]
    if options:
        raise TypeError(f"zero_volume_tensor() got an unexpected keyword argument {next(iter(options))!r}")
    return structure.zero_volume_tensor(b, dtype, device, requires_grad)


def distdl_padding_to_torch_padding(pad: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Paddings (left, right) by dimension, [dim, 2], as ``torch.nn.functional.pad`` takes them: the last one first."""
    return tuple(int(side) for sides in reversed(list(pad)) for side in sides)
