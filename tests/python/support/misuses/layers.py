"""The table of misuses: constructors of layers. Their calls are in test_misuse_calls.py."""

from functools import partial
from typing import Any

import torch

import distdl.functional as df
import distdl.nn as dnn
from distdl import Partition
from support.misuses.table import (
    Row,
    Wrong,
    grid_of,
    not_a_device,
    not_a_dtype,
    not_a_further_partition,
    not_a_partition,
    not_a_tensor,
    not_an_int,
    not_per_dimension,
    not_positive,
)

# How much of the table families of layers with the same code run, but for some members.
SAME_CODE = {"1d": 1, "2d": 2, "3d": 1}
IN_FULL = ("nn.DistributedConv2d", "nn.DistributedMaxPool2d", "nn.DistributedAdaptiveMaxPool2d")


def rows() -> dict[str, Row]:
    """By public name."""
    table = {**layers(), **convolutions()}
    for name, row in table.items():
        if name[-2:] in SAME_CODE and name not in IN_FULL:
            row.wrong = {argument: wrong[: SAME_CODE[name[-2:]]] for argument, wrong in row.wrong.items()}
    return table


def not_blocks() -> list[Wrong]:
    """Values that output_blocks does not take."""
    return [Wrong(v, ValueError, "output_blocks") for v in ("even", None, 1, True)]


def pool(**options: Any) -> dict[str, list[Wrong]]:
    """Wrong arguments of pooling layers."""
    return {
        "P_x": not_a_partition(),
        "kernel_size": [*not_per_dimension("kernel_size"), *not_positive("kernel_size")],
        "stride": [*not_per_dimension("stride", none=True), *not_positive("stride")],
        "output_blocks": not_blocks(),
        **options,
    }


def layers() -> dict[str, Row]:
    """The constructors of layers other than convolutions."""
    table = {}
    padding = [*not_per_dimension("padding"), Wrong(-1, RuntimeError, "padding"), Wrong(2, RuntimeError, "padding")]
    dilation = [*not_per_dimension("dilation"), *not_positive("dilation")]
    agreed = {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True, "output_blocks": "aligned"}
    size = [Wrong(v, TypeError, "output_size") for v in (1.5, {"a": 1}, float("nan"))]
    size += [Wrong((1,) * 7, RuntimeError, "7 values"), Wrong(-1, RuntimeError, "negative")]
    size += [Wrong(1 << 70, RuntimeError, "output_size")]
    for dims in (1, 2, 3):
        P_x = partial(lambda P, dims: {"P_x": grid_of(P, dims + 2)}, dims=dims)
        windows = partial(lambda P, dims: {"P_x": grid_of(P, dims + 2), "kernel_size": 2}, dims=dims)
        table[f"nn.DistributedMaxPool{dims}d"] = Row(
            getattr(dnn, f"DistributedMaxPool{dims}d"),
            windows,
            pool(padding=padding, dilation=dilation),
            {**agreed, "dilation": 2, "return_indices": True},
        )
        table[f"nn.DistributedAvgPool{dims}d"] = Row(
            getattr(dnn, f"DistributedAvgPool{dims}d"),
            windows,
            pool(
                padding=padding,
                divisor_override=[
                    Wrong(0, RuntimeError, "zero"),
                    Wrong("a", TypeError, "divisor_override"),
                    Wrong(1.5, TypeError, "divisor_override"),
                ],
            ),
            {**agreed, "count_include_pad": False, "divisor_override": 3},
        )
        table[f"nn.DistributedLPPool{dims}d"] = Row(
            getattr(dnn, f"DistributedLPPool{dims}d"),
            partial(lambda P, dims: {"P_x": grid_of(P, dims + 2), "norm_type": 2, "kernel_size": 2}, dims=dims),
            pool(
                norm_type=[
                    Wrong("a", ValueError, "not a number"),
                    Wrong(None, TypeError, "not a number"),
                    Wrong(0, ZeroDivisionError, "zero"),
                    Wrong(1j, TypeError, "not a number"),
                ],
            ),
            {"norm_type": 3, "kernel_size": 3, "stride": 3, "ceil_mode": True, "output_blocks": "aligned"},
        )
        for kind in ("Max", "Avg"):
            table[f"nn.DistributedAdaptive{kind}Pool{dims}d"] = Row(
                getattr(dnn, f"DistributedAdaptive{kind}Pool{dims}d"),
                partial(lambda P, good: {**good(P), "output_size": 2}, good=P_x),
                {"P_x": not_a_partition(), "output_size": size, "output_blocks": not_blocks()},
                {"output_size": 3, "output_blocks": "aligned", **({"return_indices": True} if kind == "Max" else {})},
            )
    features = {
        "in_features": [
            *not_an_int("in_features"),
            Wrong(-1, RuntimeError, "in_features"),
            Wrong(1 << 70, RuntimeError, "."),
        ],
        "out_features": [*not_an_int("out_features"), Wrong(-1, RuntimeError, "out_features")],
    }
    table["nn.DistributedLinear"] = Row(
        dnn.DistributedLinear,
        lambda P: {
            "P_x": grid_of(P, 2),
            "P_y": P.create_cartesian_topology_partition([1, 1]),
            "P_W": grid_of(P, 2),
            "in_features": 3,
            "out_features": 2,
        },
        {
            "P_x": not_a_partition(),
            "P_y": not_a_further_partition("P_y is not given"),
            "P_W": not_a_further_partition("P_W is not given"),
            **features,
            "dtype": not_a_dtype(),
            "device": not_a_device(),
        },
        {"in_features": 4, "out_features": 3, "bias": False, "dtype": torch.float64, "device": "meta"},
    )
    table["nn.DistributedPad"] = Row(
        dnn.DistributedPad,
        lambda P: {"P_x": grid_of(P, 2), "pad": (1, 1)},
        {
            "P_x": not_a_partition(),
            "pad": [Wrong(v, TypeError, "DistributedPad") for v in (1, "a", None, (1.5, 1))],
            "mode": [Wrong(v, (NotImplementedError, TypeError, RuntimeError), "mode") for v in ("mirror", None, 3)],
            "value": [Wrong(v, (TypeError, RuntimeError, ValueError), "value") for v in ("a", [1.0], 1j)],
            "output_blocks": not_blocks(),
        },
        {"pad": (2, 1), "mode": "circular", "value": 3.0, "output_blocks": "aligned"},
    )
    table["nn.DistributedUpsample"] = Row(
        dnn.DistributedUpsample,
        lambda P: {"P_x": grid_of(P, 4), "size": 3},
        {
            "P_x": not_a_partition(),
            "size": [
                Wrong("a", (TypeError, ValueError), "size"),
                Wrong(1.5, TypeError, "size"),
                Wrong((3, 3, 3), ValueError, "3 values"),
                Wrong(None, ValueError, "exactly one"),
                Wrong({"a": 1}, TypeError, "size"),
            ],
            "scale_factor": [Wrong(2.0, ValueError, "exactly one"), Wrong("a", ValueError, "exactly one")],
            "mode": [
                Wrong("linear", NotImplementedError, "mode"),
                Wrong("cubic", NotImplementedError, "mode"),
                Wrong(None, (NotImplementedError, TypeError), "mode"),
                Wrong(3, NotImplementedError, "mode"),
            ],
            "align_corners": [Wrong(True, ValueError, "align_corners"), Wrong(False, ValueError, "align_corners")],
            "recompute_scale_factor": [Wrong(True, ValueError, "recompute_scale_factor")],
            "output_blocks": not_blocks(),
        },
        {"size": 4, "mode": "bilinear", "output_blocks": "aligned"},
    )
    table["nn.DistributedUpsample by a factor"] = Row(
        dnn.DistributedUpsample,
        lambda P: {"P_x": grid_of(P, 4), "scale_factor": 2.0, "mode": "bilinear"},
        {
            "scale_factor": [
                Wrong("a", (TypeError, ValueError), "scale_factor"),
                Wrong((2.0,) * 3, ValueError, "3 values"),
                Wrong([None, 2], TypeError, "scale_factor"),
                Wrong(1j, TypeError, "scale_factor"),
            ]
        },
        {"scale_factor": 3.0, "align_corners": True, "recompute_scale_factor": True},
        free=("size", "mode", "P_x"),
    )
    table["functional.interpolate"] = Row(
        df.interpolate,
        lambda P: {"x": torch.ones(1, 1, 2, 2), "P_x": grid_of(P, 4), "size": 3},
        {
            **table["nn.DistributedUpsample"].wrong,
            "x": not_a_tensor(),
            "antialias": [Wrong(True, NotImplementedError, "antialias")],
        },
        {"size": 4},
    )
    table["nn.Module"] = Row(dnn.Module, lambda P: {}, alone=True)
    own = {"arguments": [Wrong(v, AttributeError, ".") for v in (None, 3, "P_x")]}
    table["nn.Layer"] = Row(dnn.Layer, lambda P: {"arguments": {"P_x": grid_of(P, 1)}}, own, alone=True)
    return table


def convolutions() -> dict[str, Row]:
    """The constructors of convolutions, all with the same options."""
    table = {}
    for dims in (1, 2, 3):
        for kind in ("Conv", "FeatureConv", "ChannelConv", "GeneralConv", "ConvTranspose"):
            many = kind in ("ChannelConv", "GeneralConv")

            def good(P: Partition, dims: int = dims, many: bool = many) -> dict[str, Any]:
                space = P if not many else P.create_partition_inclusive([0])
                x = (
                    grid_of(space, dims + 2)
                    if not many
                    else space.create_cartesian_topology_partition([1] * (dims + 2))
                )
                w = {"P_y": x, "P_w": space.create_cartesian_topology_partition([1] * (dims + 3))} if many else {}
                return {"P_x": x, **w, "in_channels": 4, "out_channels": 2, "kernel_size": 3}

            # torch.nn takes a convolution of no channels.
            no_channels = [bad for bad in not_positive("in_channels") if bad.value != 0 or kind == "ConvTranspose"]
            wrong = {
                "P_x": not_a_partition(),
                "in_channels": [*not_an_int("in_channels"), *no_channels],
                "out_channels": [*not_an_int("out_channels"), *not_positive("out_channels")],
                "kernel_size": [*not_per_dimension("kernel_size"), *not_positive("kernel_size")],
                "stride": [*not_per_dimension("stride"), *not_positive("stride")],
                "padding": [*not_per_dimension("padding")[1:], Wrong(-1, RuntimeError, "padding")],
                "dilation": [*not_per_dimension("dilation"), *not_positive("dilation")],
                "groups": [
                    *not_an_int("groups"),
                    *not_positive("groups", ValueError),
                    Wrong(3, ValueError, "divisible"),
                ],
                "padding_mode": [Wrong(v, ValueError, "padding_mode") for v in ("zero", None, 0)],
                "device": not_a_device(),
                "dtype": not_a_dtype(),
                "output_blocks": not_blocks(),
            }
            other = {
                "in_channels": 2,
                "out_channels": 4,
                "kernel_size": 1,
                "stride": 2,
                "padding": 1,
                "dilation": 2,
                "groups": 2,
                "bias": False,
                "device": "meta",
                "dtype": torch.float64,
                "output_blocks": "aligned",
            }
            if kind == "ConvTranspose":
                wrong["output_padding"] = [
                    *not_per_dimension("output_padding"),
                    Wrong(-1, RuntimeError, "output_padding"),
                ]
                other["output_padding"] = 1
            else:
                wrong["padding"] += [Wrong("sane", ValueError, "'valid' or 'same'")]
                other["padding_mode"] = "circular"
            missing = "three partitions" if many else ""
            wrong |= {further: not_a_further_partition(missing) for further in ("P_y", "P_w")}
            name = f"Distributed{kind}{dims}d"
            table[f"nn.{name}"] = Row(getattr(dnn, name), good, wrong, other)
    return table
