"""Bilinear layers, and linear layers whose input and output are in blocks on the same workers."""

import dataclasses
from functools import partial

import torch

import distdl.nn as dnn
from support.families import Example
from support.families.linear import made
from support.misuses.table import Row, Wrong, grid_of, not_a_device, not_a_dtype, not_a_partition, not_an_int
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
        layer=lambda twin, P_x: dnn.DistributedLinearAllGather.from_sequential(twin, P_x),
    )  # fmt: skip


def scattered(bias=True):
    """The row form."""
    return Example(
        partial(made, bias), lambda: (values((3, 2, 5)),), 3, ((0, 1, 2),), ((0, 1, 2),), balanced=(2,),
        layer=lambda twin, P_x: dnn.DistributedLinearReduceScatter.from_sequential(twin, P_x),
    )  # fmt: skip


EXAMPLES = {
    "Bilinear": bilinear_made(True, (3, 2)),
    "Bilinear without bias": bilinear_made(False, (4,)),
    "LinearAllGather": gathered(),
    "LinearAllGather without bias": gathered(False),
    "LinearAllGather of tokens": Example(
        partial(made, True), lambda: (values((2, 3, 5)),), 3, ((0, 2, None),), ((0, 1, 2),), whole=(1,),
        layer=lambda twin, P_x: dnn.DistributedLinearAllGather.from_sequential(twin, P_x, sequence_dim=1),
    ),
    "LinearReduceScatter": scattered(),
    "LinearReduceScatter without bias": scattered(False),
    "LinearReduceScatter of tokens": Example(
        partial(made, True), lambda: (values((3, 2, 5)),), 3, ((0, 1, 2),), ((2, 1, None),), whole=(0,), balanced=(2,),
        layer=lambda twin, P_x: dnn.DistributedLinearReduceScatter.from_sequential(twin, P_x, sequence_dim=-3),
    ),
}  # fmt: skip
described = {"Bilinear": bilinear}
SAMPLES = {"Bilinear": 6}


def rows() -> dict[str, Row]:
    """By public name."""
    numbers = {
        name: [*not_an_int(name), Wrong(-1, RuntimeError, name), Wrong(1 << 70, RuntimeError, ".")]
        for name in ("in_features", "out_features", "in1_features", "in2_features")
    }
    numbers["in1_features"].append(Wrong(0, ValueError, "in1_features"))
    common = {"P_x": not_a_partition(), "dtype": not_a_dtype(), "device": not_a_device()}
    other = {"bias": False, "dtype": torch.float64, "device": "meta"}
    table = {
        "nn.DistributedBilinear": Row(
            dnn.DistributedBilinear,
            lambda P: {
                "P_x": P.create_cartesian_topology_partition([P.size, 1]),
                "in1_features": 3,
                "in2_features": 2,
                "out_features": 2,
            },
            {**common, **{name: numbers[name] for name in ("in1_features", "in2_features", "out_features")}},
            {**other, "in1_features": 2, "in2_features": 3, "out_features": 4},
        )
    }
    tokens = [Wrong(v, TypeError, "sequence_dim") for v in ("a", 1.5, [1])]
    tokens += [Wrong(v, ValueError, "sequence_dim") for v in (2, -1, 3, -4)]
    for kind in (dnn.DistributedLinearAllGather, dnn.DistributedLinearReduceScatter):
        table[f"nn.{kind.__name__}"] = Row(
            kind,
            lambda P: {"P_x": grid_of(P, 3), "in_features": 3, "out_features": 2},
            {**common, "sequence_dim": tokens, **{name: numbers[name] for name in ("in_features", "out_features")}},
            {**other, "in_features": 2, "out_features": 4, "sequence_dim": 1},
        )
    return table
