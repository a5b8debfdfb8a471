"""The operands of attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from distdl.parameters.layout import Interval

Masks: TypeAlias = Sequence[torch.Tensor]
Kept: TypeAlias = Callable[[Sequence[int], Sequence[Interval]], torch.Tensor]
"""What the weights of attention are multiplied by: from the shape of all weights, and the block of them."""


class Rule(NamedTuple):
    """Which keys a query looks at, beside masks, and the factor of the scores.

    Attributes:
        scale: of the products of queries and keys.
        reach: query i looks at the keys up to i + reach; None for all keys.
    """

    scale: float
    reach: int | None = None


class Operands(NamedTuple):
    """Queries, keys and values in the memory of one worker, and which keys the queries look at.

    Attributes:
        q, k, v: of shapes (*, H, L, E), (*, H, S, E) and (*, H, S, F).
        masks: broadcastable to (*, H, L, S); boolean, True for keys that count, or added to the scores.
        rule: of the scores.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    masks: Masks
    rule: Rule


@dataclass(frozen=True)
class Call:
    """A call of attention, as a worker makes it.

    Attributes:
        q, k, v: this worker's blocks, (*, H, L, E), (*, H', S, E) and (*, H', S, F).
        masks: this worker's blocks of the masks, with as many dimensions as q. The last dimension has all keys, or is
            1.
        scale: of the scores; 1 / sqrt(E) by default.
        kept: of dropout.
        further: a key and a value for each head that all queries look at as well, behind all other keys: of shape
            (H, n, E). The masks have a column for each of them.
        differentiated: whether tensors of any worker require gradients.
        has_tangent: whether tensors of any worker have forward derivatives.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    masks: Masks = ()
    scale: float | None = None
    kept: Kept | None = None
    further: tuple[torch.Tensor, torch.Tensor] | None = None
    differentiated: bool = False
    has_tangent: bool = False

    @property
    def factor(self) -> float:
        """The factor of the scores."""
        if self.scale is not None:
            return self.scale
        return float(self.q.shape[-1] ** -0.5) if self.q.shape[-1] else 1.0
