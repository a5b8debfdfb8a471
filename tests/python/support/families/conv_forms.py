"""Convolutions whose input and output are in blocks of channels on one partition."""

from functools import partial
from typing import Any

import torch

import distdl.nn as dnn
from support.families import Example
from support.misuses.table import Row, grid_of
from support.tensors import values

FORMS = ("AllGather", "ReduceScatter")
SPACE = (5, 4, 3)
OTHER_EXTENTS = {"Conv": 2, "ConvTranspose": 0}  # paddings with which the output is larger than the input, and balanced


def made(kind: str, dims: int, **options: Any) -> torch.nn.Module:
    """The same on all ranks."""
    torch.manual_seed(1)
    return getattr(torch.nn, f"{kind}{dims}d")(3, 5, 3, dtype=torch.float64, **options)


def grouped(kind: str) -> torch.nn.Module:
    """The same on all ranks: as many groups as blocks on two workers."""
    torch.manual_seed(1)
    return getattr(torch.nn, f"{kind}1d")(4, 4, 3, groups=4, padding=OTHER_EXTENTS[kind], dtype=torch.float64)


def example(form: str, twin: Any, shape: tuple[int, ...], balanced: tuple[int, ...] = ()) -> Example:
    """On any partition of batch, channels and space."""
    cut = tuple(range(len(shape)))
    name = type(twin()).__name__
    return Example(
        twin, lambda: (values(shape) / 4,), len(shape), (cut,), (cut,), balanced=balanced,
        tolerance=1e-11, kind=f"DistributedChannel{form}{name}",
    )  # fmt: skip


EXAMPLES = {
    **{
        f"Channel{form}{kind}{dims}d": example(
            form,
            partial(made, kind, dims, padding=OTHER_EXTENTS[kind], stride=2 if dims == 1 else 1, bias=dims != 2),
            (2, 3, *SPACE[:dims]),
        )
        for form in FORMS
        for kind in ("Conv", "ConvTranspose")
        for dims in (1, 2, 3)
    },
    **{
        f"Channel{form}{kind}1d in groups": example(form, partial(grouped, kind), (2, 4, 5), balanced=(1,))
        for form in FORMS
        for kind in ("Conv", "ConvTranspose")
    },
    "ChannelAllGatherConv2d without batch": example("AllGather", partial(made, "Conv", 2), (3, 5, 4)),
    "ChannelReduceScatterConv1d circular": example(
        "ReduceScatter", partial(made, "Conv", 1, padding=2, padding_mode="circular"), (2, 3, 5)
    ),
}


def rows() -> dict[str, Row]:
    """By public name: as for the other convolutions, without their further partitions."""
    from support.misuses.layers import rows as of_layers

    table, known = {}, of_layers()
    for form in FORMS:
        for kind in ("Conv", "ConvTranspose"):
            for dims in (1, 2, 3):
                like = known[f"nn.Distributed{kind}{dims}d"]
                layer = getattr(dnn, f"DistributedChannel{form}{kind}{dims}d")
                wrong = {name: misuses[:1] for name, misuses in like.wrong.items() if name not in ("P_y", "P_w")}

                def good(P: Any, dims: int = dims) -> dict[str, Any]:
                    return {"P_x": grid_of(P, dims + 2), "in_channels": 4, "out_channels": 2, "kernel_size": 3}

                table[f"nn.{layer.__name__}"] = Row(layer, good, wrong, dict(like.other))
    return table
