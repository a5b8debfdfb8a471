"""Softmax and its relatives."""

import torch

from support.families import Example
from support.misuses.table import Wrong
from support.tensors import values


def softmax(twin, x):
    """Every dimension in blocks."""
    cut = tuple(range(x.dim()))
    return Example(lambda: twin, lambda: (x,), x.dim(), (cut,), (cut,))


def uneven(*shape):
    """Values of which no two are as far apart as two others."""
    return (values(shape) + torch.linspace(0, 1.5, torch.Size(shape).numel(), dtype=torch.float64).view(shape)) / 2


KINDS = ("Softmax", "LogSoftmax", "Softmin")
EXAMPLES = {
    f"{kind} dim={dim}": softmax(getattr(torch.nn, kind)(dim), uneven(3, 2, 4))
    for kind, dim in zip(KINDS, (1, -1, 0), strict=True)
}
EXAMPLES |= {
    "LogSoftmax in one dimension": softmax(torch.nn.LogSoftmax(0), uneven(5)),
    "Softmax2d": softmax(torch.nn.Softmax2d(), uneven(2, 3, 2, 2)),
    "Softmax2d without a batch": softmax(torch.nn.Softmax2d(), uneven(3, 2, 2)),
}
described = dict.fromkeys((*KINDS, "Softmax2d"), softmax)
SAMPLES = {"Softmax": 6, "LogSoftmax": 8, "Softmin": 8, "Softmax2d": 4}
MISUSES = {f"Distributed{kind}": {"dim": [Wrong(v, ValueError, "has 3 dimensions") for v in (4, -5)]} for kind in KINDS}
