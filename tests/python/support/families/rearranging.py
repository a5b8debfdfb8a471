"""Shuffles and flattening."""

import torch

import distdl.nn as dnn
from support.families import Example
from support.misuses.table import Row, Wrong, grid_of, not_a_further_partition, not_a_partition, not_an_int
from support.tensors import values


def along(x):
    """Each dimension along its own axis of P_x."""
    return tuple(range(x.dim()))


def shuffle(twin, x):
    """Any dimension split."""
    return Example(lambda: twin, lambda: (x,), x.dim(), (along(x),), (along(x),), tolerance=0.0)


def flatten(twin, x):
    """The first of the flattened dimensions that has several elements."""
    first, last = (d % x.dim() for d in (twin.start_dim, twin.end_dim))
    split = next((d for d in range(first, last + 1) if x.shape[d] > 1), first)
    whole = tuple(d for d in range(first, last + 1) if d != split)
    result = (*range(first), split, *range(last + 1, x.dim()))
    return Example(lambda: twin, lambda: (x,), x.dim(), (along(x),), (result,), whole=whole, tolerance=0.0)


def unflatten(twin, x):
    """The workers of the dimension stand along the first of its new ones."""
    d, new = twin.dim % x.dim(), [None] * len(twin.unflattened_size)
    new[next((i for i, n in enumerate(twin.unflattened_size) if n != 1), 0)] = d
    result = (*range(d), *new, *range(d + 1, x.dim()))
    return Example(lambda: twin, lambda: (x,), x.dim(), (along(x),), (result,), tolerance=0.0)


EXAMPLES = {
    "PixelShuffle": shuffle(torch.nn.PixelShuffle(2), values((2, 12, 2, 3))),
    "PixelShuffle of one image": shuffle(torch.nn.PixelShuffle(3), values((9, 1, 2))),
    "PixelUnshuffle": shuffle(torch.nn.PixelUnshuffle(2), values((2, 3, 4, 6))),
    "ChannelShuffle": shuffle(torch.nn.ChannelShuffle(3), values((2, 6, 2, 2))),
    "ChannelShuffle in many groups": shuffle(torch.nn.ChannelShuffle(9), values((1, 18, 2))),
    "Flatten": flatten(torch.nn.Flatten(), values((2, 3, 2, 2))),
    "Flatten from inside": flatten(torch.nn.Flatten(1, 3), values((2, 1, 5, 3, 2))),
    "Flatten one": flatten(torch.nn.Flatten(1, 1), values((2, 5))),
    "Unflatten": unflatten(torch.nn.Unflatten(1, (3, -1)), values((2, 12))),
    "Unflatten before": unflatten(torch.nn.Unflatten(0, (1, 3, 2)), values((6, 3))),
}


def rows() -> dict[str, Row]:
    """Flattening and unflattening, also from partition to partition."""
    dims = [Wrong(7, IndexError, "out of range"), Wrong(-7, IndexError, "out of range")]
    further = not_a_further_partition()
    sizes = [Wrong(v, TypeError, "unflattened_size") for v in (3, None, "a", (1.5,), ("a",))]
    sizes += [Wrong(v, RuntimeError, "unflattened_size") for v in ((), (-1, -1), (-2, 3), (1 << 70,))]
    return {
        "nn.DistributedFlatten": Row(
            dnn.DistributedFlatten,
            lambda P: {"P_x": grid_of(P, 3), "P_y": grid_of(P, 2)},
            {
                "P_x": not_a_partition(),
                "start_dim": [*not_an_int("start_dim"), *dims, Wrong(-1, ValueError, "dimensions")],
                "end_dim": [*not_an_int("end_dim"), *dims, Wrong(0, RuntimeError, "start_dim cannot come after")],
                "P_y": further,
            },
            {"start_dim": -2, "end_dim": 2},
        ),
        "nn.DistributedUnflatten": Row(
            dnn.DistributedUnflatten,
            lambda P: {"P_x": grid_of(P, 2), "dim": 1, "unflattened_size": (2, 3), "P_y": grid_of(P, 3)},
            {
                "P_x": not_a_partition(),
                "dim": [*not_an_int("dim"), *dims],
                "unflattened_size": sizes,
                "P_y": further,
            },
            {"dim": 0, "unflattened_size": (3, 2)},
        ),
    }
