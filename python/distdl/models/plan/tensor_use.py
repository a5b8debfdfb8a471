"""The use of a tensor on a rank in a step of training."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TensorUse:
    """A tensor on this rank.

    Attributes:
        first, last: the first and the last moment of its use in the forward pass.
        checkpoint: the checkpoint in which it is made; 0 for none.
        savers: the steps whose backward passes need it.
        readers: the checkpoints that read it; 0 for other steps.
    """

    nbytes: int
    first: int
    last: int
    checkpoint: int = 0
    savers: list[int] = field(default_factory=list)
    readers: set[int] = field(default_factory=set)
