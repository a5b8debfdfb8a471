"""The dropout within attention and transformers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distdl.nn.attention.geometry import intervals_of
from distdl.nn.attention.plan import Kept
from distdl.nn.layer import Layer
from distdl.parameters.layout import Interval


class Dropping(Layer):
    """A layer that drops elements of several tensors in a call, each by its index in the whole tensor.

    Attributes:
        tokens: the sizes of the blocks of what :meth:`drop` is given, by dimension, without features.
    """

    tokens: Sequence[Sequence[int]]

    def check_dropout(self, p: float, name: str = "dropout") -> None:
        """Refuse what is no probability."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{type(self).__name__}: {name}={p}; it must be in [0, 1]")

    def kept(self, p: float, number: int) -> Kept | None:
        """What weights are multiplied by; None where nothing is dropped.

        Args:
            p: the probability of 0.
            number: of the tensor among those of a call.
        """
        if not self.training or p == 0.0:
            return None

        def block(shape: Sequence[int], intervals: Sequence[Interval]) -> torch.Tensor:
            size = [stop - start for start, stop in intervals]
            return torch.empty(size).bernoulli_(1 - p).div_(max(1 - p, 1e-30))

        return block

    def drop(self, x: torch.Tensor, p: float, number: int) -> torch.Tensor:
        """Drop elements of this worker's block of tokens."""
        kept = self.kept(p, number)
        if kept is None:
            return x
        intervals = [intervals_of(sizes)[at] for sizes, at in zip(self.tokens, self.grid.place, strict=False)]
        whole = [*(sum(sizes) for sizes in self.tokens), x.shape[-1]]
        return x * kept(whole, [*intervals, (0, x.shape[-1])]).to(x.dtype)
