"""Exchanges of blocks that differ in their features alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from distdl import _core
from distdl.operators import Operator, Started


class Move:
    """Exchanges of tensors, one for each number of features, planned at the first call.

    A function with derivatives of its own calls it, whose ranks have agreed on its call: no call takes a vote, none is
    recorded. All calls are collective. Those with the same features have tensors of the same shape on each rank.

    Args:
        make: the exchange of tensors with so many features.
        features: the numbers of features of its tensors.
    """

    def __init__(self, make: Callable[[int], Operator], features: Sequence[int]) -> None:
        self._operators = {n: make(n) for n in sorted(set(features))}
        self._planned: dict[int, _core.PlannedOperator] = {}

    def recorded(self, x: torch.Tensor) -> torch.Tensor:
        """The exchange as autograd records it, with votes of its own in the backward pass."""
        return self._operators[x.shape[-1]](x)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor that arrives."""
        return self._of(x)(x)

    def start(self, x: torch.Tensor) -> Started:
        """Begin the exchange."""
        return self._of(x).start(x)

    def adjoint(self, y: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The way back: what came from the same place is added. `like` has the rows of the result."""
        return self._of(y.new_empty(()).expand(*like.shape[:-1], y.shape[-1])).adjoint()(y)

    def _of(self, x: torch.Tensor) -> _core.PlannedOperator:
        features = x.shape[-1]
        if features not in self._planned:
            self._planned[features] = self._operators[features].plan(x)
        return self._planned[features]
