"""Unfold and fold."""

import torch

import distdl.nn as dnn
from support.families import Example
from support.misuses.table import (
    Row,
    Wrong,
    grid_of,
    not_a_further_partition,
    not_a_partition,
    not_per_dimension,
    not_positive,
)
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
# torch has no samples of these classes.
described = {}
SAMPLES = {}


def rows() -> dict[str, Row]:
    """The layers with all of their options."""
    windows = {
        "kernel_size": [*not_per_dimension("kernel_size"), *not_positive("kernel_size")],
        "dilation": [*not_per_dimension("dilation"), *not_positive("dilation")],
        "padding": [*not_per_dimension("padding"), Wrong(-1, RuntimeError, "padding")],
        "stride": [*not_per_dimension("stride"), *not_positive("stride")],
        "P_x": not_a_partition(),
        "P_y": not_a_further_partition(),
    }
    other = {"kernel_size": 3, "dilation": 2, "padding": 1, "stride": 2}
    size = [*not_per_dimension("output_size"), *not_positive("output_size")]
    return {
        "nn.DistributedUnfold": Row(
            dnn.DistributedUnfold,
            lambda P: {"P_x": grid_of(P, 4), "kernel_size": 2, "P_y": grid_of(P, 3)},
            windows,
            other,
        ),
        "nn.DistributedFold": Row(
            dnn.DistributedFold,
            lambda P: {"P_x": grid_of(P, 3), "output_size": 4, "kernel_size": 2, "P_y": grid_of(P, 4)},
            {**windows, "output_size": size},
            {**other, "output_size": 5},
        ),
    }
