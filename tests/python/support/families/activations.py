"""Activations with parameters, and those that look across a dimension."""

import dataclasses
from functools import partial

import torch

from support.families import Example
from support.misuses.table import (
    Wrong,
)
from support.tensors import values


def around_zero(shape):
    """Integers of both signs."""
    return values(shape) - 1.5


def prelu(twin, x):
    cut = tuple(range(x.dim()))
    many = twin.num_parameters > 1
    return Example(lambda: twin, lambda: (x,), x.dim(), (cut,), (cut,), balanced=(1,) if many and x.dim() > 1 else ())


def glu(twin, x):
    cut = tuple(range(x.dim()))
    return Example(lambda: twin, lambda: (x,), x.dim(), (cut,), (cut,))


def fresh(example, kind, shape, *arguments, **options):
    """The example of a module that is made anew each time."""
    make, inputs = partial(made, kind, *arguments, **options), lambda: (around_zero(shape),)
    return dataclasses.replace(example(make(), *inputs()), twin=make, inputs=inputs)


def made(kind, *arguments, **options):
    """The same on all ranks, with parameters that differ."""
    twin = kind(*arguments, **options).double()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(torch.arange(1.0, parameter.numel() + 1) / 8)
    return twin


EXAMPLES = {
    "PReLU": fresh(prelu, torch.nn.PReLU, (3, 4)),
    "PReLU of vectors": fresh(prelu, torch.nn.PReLU, (5,)),
    "PReLU by channel": fresh(prelu, torch.nn.PReLU, (2, 5, 3), 5, 0.5),
    "GLU": fresh(glu, torch.nn.GLU, (3, 6)),
    "GLU of vectors": fresh(glu, torch.nn.GLU, (2,)),
    "GLU of channels": fresh(glu, torch.nn.GLU, (2, 6, 3), 1),
}
described = {"PReLU": prelu, "GLU": glu}
SAMPLES = {"PReLU": 16, "GLU": 6}
MISUSES = {"DistributedGLU": {"dim": [Wrong(v, ValueError, "dim") for v in (4, -5)]}}
