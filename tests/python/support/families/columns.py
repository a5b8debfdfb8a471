"""Unfold and fold."""

import torch

from support.families import Example
from support.tensors import values


def unfold(twin, x):
    """Split along the rows: the windows' dimension is, too."""
    batch = tuple(range(x.dim() - 3))
    channels, rows, columns = range(x.dim() - 3, x.dim())
    cut, result = (*batch, channels, rows, columns), (*batch, channels, rows)
    return Example(lambda: twin, lambda: (x,), x.dim(), (cut,), (result,), whole=(columns,))


def fold(twin, x):
    """The workers of the windows stand along the rows of the result."""
    cut = tuple(range(x.dim()))
    return Example(lambda: twin, lambda: (x,), x.dim(), (cut,), ((*cut, None),))


EXAMPLES = {
    "Unfold": unfold(torch.nn.Unfold(3, 1, 1), values((2, 3, 5, 4))),
    "Unfold with all options": unfold(torch.nn.Unfold((2, 1), 2, (1, 0), (2, 3)), values((1, 2, 7, 4))),
    "Unfold one image": unfold(torch.nn.Unfold((1, 2)), values((3, 1, 5))),
    "Fold": fold(torch.nn.Fold((5, 4), 3, 1, 1), values((2, 27, 20))),
    "Fold with all options": fold(torch.nn.Fold((7, 4), (2, 1), 2, (1, 0), (2, 3)), values((1, 4, 8))),
    "Fold with gaps": fold(torch.nn.Fold((6, 7), (1, 2), stride=(4, 3)), values((1, 4, 4))),
    "Fold one image": fold(torch.nn.Fold((1, 5), (1, 2)), values((6, 4))),
}
