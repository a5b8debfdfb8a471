"""Linear layers over split leading dimensions."""

import torch

from support.families import Example
from support.tensors import values


def linear(twin, x):
    """P_x alone: leading dimensions may be split, the features may not."""
    last = x.dim() - 1
    cut = tuple(range(x.dim()))
    return Example(
        lambda: twin, lambda: (x,), x.dim(), (cut,), (cut,), whole=(last,), tolerance=1e-12
    ) if x.dim() > 1 else None  # fmt: skip


def made(bias):
    """The same on all ranks."""
    torch.manual_seed(1)
    return torch.nn.Linear(5, 4, bias=bias, dtype=torch.float64)


EXAMPLES = {
    f"Linear bias={bias}": Example(
        lambda bias=bias: made(bias), lambda: (values((4, 3, 5)),), 3, ((0, 1, 2),), ((0, 1, 2),), whole=(2,)
    )
    for bias in (True, False)
}
described = {"Linear": linear}
SAMPLES = {"Linear": 4}
