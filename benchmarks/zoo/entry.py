"""A model to compare, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A model.

    Attributes:
        make: constructs it, with the weights of its own initialization.
        shapes: of its inputs, the first of which is split.
        space: the dimensions of the first input that are split, beside the batch; one of tokens.
        below: the inputs are whole numbers below this number; 0 for real numbers.
        options: further arguments of each call.
        is_large: whether it has 130 million parameters or more.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    shapes: tuple[Shape, ...]
    space: tuple[int, ...] = (2, 3)
    below: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    is_large: bool = False

    def split(self, of_image: Sequence[int]) -> list[int]:
        """The numbers of blocks along the dimensions of the first input, from those of an image.

        Where only one dimension of space may be split, it has the largest of the two numbers.
        """
        splits = [of_image[0]] + [1] * (len(self.shapes[0]) - 1)
        first, second = of_image[2:]
        if len(self.space) > 1:
            splits[self.space[0]], splits[self.space[1]] = first, second
        else:
            splits[self.space[0]] = max(first, second)
        return splits

    def inputs(self) -> list[torch.Tensor]:
        """The same inputs in each process."""
        generator = torch.Generator().manual_seed(1)
        if self.below:
            return [torch.randint(self.below, shape, generator=generator) for shape in self.shapes]
        return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in self.shapes]
