"""The memory of a rank in a step of training, by what it is for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a rank at the fullest moment of a step of training.

    Attributes:
        weights: its part of the parameters.
        optimizer: its part of what the optimizer keeps.
        gradients: its part of the gradients of parameters that are known by then.
        copies: parameters that have arrived from their owners, their gradients on the way back, and messages.
        kept: inputs and results that a backward pass still needs.
        passing: other results, and gradients of results.
    """

    weights: int = 0
    optimizer: int = 0
    gradients: int = 0
    copies: int = 0
    kept: int = 0
    passing: int = 0

    @property
    def total(self) -> int:
        """The sum of all."""
        return sum(vars(self).values())

    def __str__(self) -> str:
        named = {name: count for name, count in vars(self).items() if count}
        return ", ".join(f"{name} {count / 2**20:.1f}" for name, count in named.items())
