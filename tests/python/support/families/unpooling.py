"""Unpooling, fractional pooling, and the older names of interpolation."""

import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import distdl.nn as dnn
from support.families import Example
from support.misuses.table import Row, Wrong, grid_of, not_a_partition, not_per_dimension, not_positive
from support.tensors import values


def along(x, twin, *tensors, **options):
    """Any dimension split; all tensors in the same way."""
    cut = tuple(range(x.dim()))
    results = 2 if getattr(twin, "return_indices", False) else 1
    make = partial(copy.deepcopy, twin)  # whose samples a test may convert
    return Example(make, lambda: (x, *tensors), x.dim(), (cut,) * (1 + len(tensors)), (cut,) * results, **options)


def unpool(dims, shape, *arguments, output_size=None, **options):
    """Unpooling of the results of max pooling."""
    pooled, indices = getattr(F, f"max_pool{dims}d")(values(shape), *arguments, **options, return_indices=True)
    call = {} if output_size is None else {"output_size": output_size}
    return along(pooled + 1, getattr(torch.nn, f"MaxUnpool{dims}d")(*arguments, **options), indices, call=call)


def fractional(twin, x):
    """Torch has no second derivatives."""
    return along(x, twin, second=False)


def drawn(*shape):
    """Samples for the windows of each channel."""
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


EXAMPLES = {
    "MaxUnpool1d": unpool(1, (2, 2, 9), 2),
    "MaxUnpool1d of overlapping windows": unpool(1, (2, 11), 3, 2, padding=1),
    "MaxUnpool2d": unpool(2, (2, 3, 7, 6), 2, output_size=(7, 6)),
    "MaxUnpool2d of one image": unpool(2, (3, 4, 9), (2, 3)),
    "MaxUnpool3d": unpool(3, (1, 2, 4, 3, 5), 2, 1),
    "FractionalMaxPool2d": fractional(
        torch.nn.FractionalMaxPool2d((2, 3), output_ratio=(0.5, 0.4), _random_samples=drawn(2, 3, 2)),
        values((2, 3, 9, 10)),
    ),
    "FractionalMaxPool2d of one image": fractional(
        torch.nn.FractionalMaxPool2d(3, (1, 5), return_indices=True, _random_samples=drawn(1, 2, 2)), values((2, 4, 9))
    ),
    "FractionalMaxPool3d": fractional(
        torch.nn.FractionalMaxPool3d(2, (2, 3, 1), return_indices=True, _random_samples=drawn(1, 2, 3)),
        values((1, 2, 5, 6, 4)),
    ),
    "UpsamplingNearest2d": along(values((1, 2, 3, 4)), torch.nn.UpsamplingNearest2d(scale_factor=1.5)),
    "UpsamplingBilinear2d": along(values((2, 1, 3, 4)), torch.nn.UpsamplingBilinear2d((5, 7))),
}
described = {"FractionalMaxPool2d": fractional, "FractionalMaxPool3d": fractional}
SAMPLES = {"FractionalMaxPool2d": 10, "FractionalMaxPool3d": 12}


def good(dims: int, **options: Any) -> Any:
    """The arguments of a good call."""
    return partial(lambda P, dims: {"P_x": grid_of(P, dims + 2), **options}, dims=dims)


def rows() -> dict[str, Row]:
    """In a family that shares its code, one layer has the whole table."""
    table = {}
    kernel = [*not_per_dimension("kernel_size"), *not_positive("kernel_size")]
    for dims in (1, 2, 3):
        wrong = {
            "kernel_size": not_per_dimension("kernel_size"),
            "stride": not_per_dimension("stride", none=True),
            "padding": not_per_dimension("padding"),
        }
        wrong = {"P_x": not_a_partition(), **(wrong if dims == 2 else {})}
        name = f"DistributedMaxUnpool{dims}d"
        other = {"kernel_size": 3, "stride": 1, "padding": 1}
        free = () if dims == 2 else tuple(other)
        table[f"nn.{name}"] = Row(getattr(dnn, name), good(dims, kernel_size=2), wrong, other, free=free)
    for dims in (2, 3):
        wrong = {
            "P_x": not_a_partition(),
            "kernel_size": kernel,
            "output_size": [*not_per_dimension("output_size", none=True), *not_positive("output_size")],
            "output_ratio": [
                Wrong(0.5, ValueError, "exactly one"),
                Wrong("a", ValueError, "exactly one|could not convert"),
            ],
            "_random_samples": [Wrong(v, TypeError, "_random_samples") for v in (3, "a", [0.5])],
            "output_blocks": [Wrong(v, ValueError, "output_blocks") for v in ("even", None, 1)],
        }
        other = {
            "kernel_size": 3,
            "output_size": 3,
            "return_indices": True,
            "_random_samples": torch.ones(1, 1, dims),
            "output_blocks": "aligned",
        }
        name = f"DistributedFractionalMaxPool{dims}d"
        table[f"nn.{name}"] = Row(getattr(dnn, name), good(dims, kernel_size=2, output_size=2), wrong, other)
        ratios = [Wrong(v, ValueError, "between 0 and 1") for v in (0.0, 1.0, -0.5, (0.5,), float("nan"))]
        ratios += [Wrong(v, (TypeError, ValueError), ".") for v in ("a", [None] * dims, 1j)]
        table[f"nn.{name} by a ratio"] = Row(
            getattr(dnn, name),
            good(dims, kernel_size=2, output_ratio=0.5),
            {"output_ratio": ratios},
            {"output_ratio": 0.6},
            free=("P_x", "kernel_size", "output_size", "return_indices", "_random_samples", "output_blocks"),
        )
    for mode in ("Nearest", "Bilinear"):
        name = f"DistributedUpsampling{mode}2d"
        table[f"nn.{name}"] = Row(
            getattr(dnn, name),
            good(2, size=3),
            {
                "P_x": not_a_partition(),
                "size": [Wrong(1.5, TypeError, "size"), Wrong((3, 3, 3), ValueError, "3 values")],
                "scale_factor": [Wrong(2.0, ValueError, "exactly one")],
                "output_blocks": [Wrong(v, ValueError, "output_blocks") for v in ("even", None)],
            },
            {"size": 4, "output_blocks": "aligned"},
        )
    return table
