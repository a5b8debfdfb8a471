"""Exchanges of blocks that differ only in their number of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from distdl import _core
from distdl.operators import Operator, Started


class Exchange:
    """Exchanges of tensors, an operator for each number of features, planned at the first call.

    Autograd functions with their own derivatives call it after a vote: no call takes a vote, none is recorded. All are
    collective. Tensors with the same number of features have the same shape on each rank.
    """

    def __init__(self, make: Callable[[int], Operator], features: Sequence[int]) -> None:
        self._operators = {n: make(n) for n in sorted(set(features))}
        self._planned: dict[int, _core.PlannedOperator] = {}

    def recorded(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange with autograd, whose backward pass takes votes."""
        return self._operators[x.shape[-1]](x)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor that arrives."""
        return self._planned_for(x)(x)

    def start(self, x: torch.Tensor) -> Started:
        return self._planned_for(x).start(x)

    def adjoint(self, y: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Send y back; blocks sent to several workers are summed. `like` has the rows of the result."""
        return self._planned_for(y.new_empty(()).expand(*like.shape[:-1], y.shape[-1])).adjoint()(y)

    def _planned_for(self, x: torch.Tensor) -> _core.PlannedOperator:
        features = x.shape[-1]
        if features not in self._planned:
            self._planned[features] = self._operators[features].plan(x)
        return self._planned[features]
