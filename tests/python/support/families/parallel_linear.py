"""Bilinear layers, and linear layers whose input and output are in blocks on the same workers."""

import dataclasses
from functools import partial

import torch

from support.families import Example
from support.families.linear import made
from support.misuses.table import Wrong
from support.tensors import values


def bilinear(twin, x, y):
    last = x.dim() - 1
    cut = tuple(range(x.dim()))
    return Example(lambda: twin, lambda: (x, y), x.dim(), (cut, cut), (cut,), whole=(last,))


def bilinear_made(bias, leading):
    """The example of a module that is made anew each time."""

    def make():
        torch.manual_seed(1)
        return torch.nn.Bilinear(3, 2, 4, bias=bias, dtype=torch.float64)

    def inputs():
        return values((*leading, 3)), values((*leading, 2), seed=1)

    return dataclasses.replace(bilinear(make(), *inputs()), twin=make, inputs=inputs)


def gathered(bias=True):
    """The column form."""
    return Example(
        partial(made, bias), lambda: (values((3, 2, 5)),), 3, ((0, 1, 2),), ((0, 1, 2),),
        kind="DistributedLinearAllGather",
    )  # fmt: skip


def scattered(bias=True):
    """The row form."""
    return Example(
        partial(made, bias), lambda: (values((3, 2, 5)),), 3, ((0, 1, 2),), ((0, 1, 2),), balanced=(2,),
        kind="DistributedLinearReduceScatter",
    )  # fmt: skip


EXAMPLES = {
    "Bilinear": bilinear_made(True, (3, 2)),
    "Bilinear without bias": bilinear_made(False, (4,)),
    "LinearAllGather": gathered(),
    "LinearAllGather without bias": gathered(False),
    "LinearAllGather of tokens": Example(
        partial(made, True), lambda: (values((2, 3, 5)),), 3, ((0, 2, None),), ((0, 1, 2),), whole=(1,),
        kind="DistributedLinearAllGather", options={"sequence_dim": 1},
    ),
    "LinearReduceScatter": scattered(),
    "LinearReduceScatter without bias": scattered(False),
    "LinearReduceScatter of tokens": Example(
        partial(made, True), lambda: (values((3, 2, 5)),), 3, ((0, 1, 2),), ((2, 1, None),), whole=(0,), balanced=(2,),
        kind="DistributedLinearReduceScatter", options={"sequence_dim": -3},
    ),
}  # fmt: skip
described = {"Bilinear": bilinear}
SAMPLES = {"Bilinear": 6}
MISUSES = {
    "DistributedBilinear": {"in1_features": [Wrong(0, ValueError, "in1_features")]},
    **{
        f"Distributed{name}": {"sequence_dim": [Wrong(v, ValueError, "sequence_dim") for v in (2, -1, 3, -4)]}
        for name in ("LinearAllGather", "LinearReduceScatter")
    },
}
OTHER = {f"Distributed{name}": {"sequence_dim": 1} for name in ("LinearAllGather", "LinearReduceScatter")}
