"""Dropout within attention and transformer layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import torch

from distdl.nn.attention.kernels.operands import DropoutMask
from distdl.nn.base.layer import Layer
from distdl.nn.base.option_types import choice
from distdl.nn.base.precision import wide
from distdl.nn.base.random_numbers import key_of_part, random_mask
from distdl.partitions.boxes import Interval, block_at, box_shape

Method: TypeAlias = Annotated[str, choice("heads", "ring")] | None


class LayerWithDropout(Layer):
    """A layer that drops elements of several tensors in a call, each by its index in the whole tensor.

    Attributes:
        tokens: the sizes of the blocks of the tensors that :meth:`drop` takes, by dimension, without features.
    """

    tokens: Sequence[Sequence[int]]
    dropout: float

    def is_random(self) -> bool:
        return self.training and any(0.0 < p < 1.0 for p in self.probabilities())

    def probabilities(self) -> tuple[float, ...]:
        return (self.dropout,)

    def compared_each_call(self) -> str:
        return f"dropout {self.mode()}"

    def mode(self) -> tuple[float, ...]:
        """The probabilities in use, which must be equal on all ranks."""
        return self.probabilities() if self.training else ()

    def dropout_mask(self, p: float, number: int, like: torch.Tensor) -> DropoutMask | None:
        """The factors of a tensor's elements; None if nothing is dropped.

        Args:
            p: the probability of 0.
            number: the tensor's place among the tensors of a call.
            like: has the dtype and the device.
        """
        if not self.training or p == 0.0:
            return None
        key = key_of_part(self.random_key if p < 1.0 else 0, number)
        dtype, device = wide(like).dtype, like.device

        def block(shape: Sequence[int], intervals: Sequence[Interval]) -> torch.Tensor:
            if p == 1.0:
                return torch.zeros(box_shape(intervals), dtype=dtype, device=device)
            return random_mask(key, shape, intervals, p, dtype=dtype, device=device)

        return block

    def drop(self, x: torch.Tensor, p: float, number: int) -> torch.Tensor:
        mask = self.dropout_mask(p, number, x)
        if mask is None:
            return x
        intervals = block_at(self.tokens, self.grid.place)
        whole = [*(sum(sizes) for sizes in self.tokens), x.shape[-1]]
        return x * mask(whole, [*intervals, (0, x.shape[-1])]).to(x.dtype)
