"""Arguments of the attention functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from distdl.partitions.boxes import Interval

Masks: TypeAlias = Sequence[torch.Tensor]
DropoutMask: TypeAlias = Callable[[Sequence[int], Sequence[Interval]], torch.Tensor]
"""Makes a block of the factors of the weights, from the shape of all weights and the intervals of the block."""


class MaskRule(NamedTuple):
    """The keys that a query attends to, apart from masks, and the factor of the scores.

    Attributes:
        scale: of the products of queries and keys.
        reach: query i attends to the keys up to i + reach; None for all keys.
    """

    scale: float
    reach: int | None = None


class Operands(NamedTuple):
    """Queries, keys and values in the memory of a worker, with their masks.

    Attributes:
        q, k, v: of shapes (*, H, L, E), (*, H, S, E) and (*, H, S, F).
        masks: broadcastable to (*, H, L, S); boolean, True for keys that count, or added to the scores.
        rule: the range of keys, and the scale.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    masks: Masks
    rule: MaskRule


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of a worker in a call of attention.

    Attributes:
        q, k, v: this worker's blocks, (*, H, L, E), (*, H', S, E) and (*, H', S, F).
        masks: this worker's blocks, with as many dimensions as q. The last dimension has all keys, or is 1.
        scale: of the scores; 1 / sqrt(E) by default.
        dropout: makes the factors of the weights.
        extra_keys: n keys and values of each head after all other keys, (H, n, E), which all queries attend to. Masks
            have n columns for them.
        differentiated: whether a tensor of any worker requires gradients.
        has_tangent: whether a tensor of any worker has a forward derivative.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    masks: Masks = ()
    scale: float | None = None
    dropout: DropoutMask | None = None
    extra_keys: tuple[torch.Tensor, torch.Tensor] | None = None
    differentiated: bool = False
    has_tangent: bool = False

    @property
    def factor(self) -> float:
        if self.scale is not None:
            return self.scale
        return float(self.q.shape[-1] ** -0.5) if self.q.shape[-1] else 1.0
