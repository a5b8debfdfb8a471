"""Normalization by batch, instance, group, layer, root mean square, and neighboring channels."""

import dataclasses

import torch

import distdl.nn as dnn
from support.families import Example
from support.misuses.table import (
    Row,
    Wrong,
    grid_of,
    not_a_device,
    not_a_dtype,
    not_a_partition,
    not_an_int,
    not_positive,
)
from support.tensors import values
from support.versions import NORMS_HAVE_BIAS


def described_by(channels, features=lambda twin: 0):
    """How an input and a result are cut: along all axes, in balanced blocks of what parameters or buffers are of."""

    def describe(twin, x):
        axes = tuple(range(x.dim()))
        balanced = [*channels(twin, x), *axes[x.dim() - features(twin) :]] if twin.state_dict() else []
        return Example(lambda: twin, lambda: (x,), x.dim(), (axes,), (axes,), balanced=tuple(balanced))

    return describe


of_batch = described_by(lambda twin, x: [1])
of_features = described_by(lambda twin, x: [], lambda twin: len(twin.normalized_shape))
of_nothing = described_by(lambda twin, x: [])


def of_instance(dims):
    """An example with or without a batch."""
    return described_by(lambda twin, x: [x.dim() - dims - 1])


described = {
    **{f"BatchNorm{dims}d": of_batch for dims in (1, 2, 3)},
    **{f"InstanceNorm{dims}d": of_instance(dims) for dims in (1, 2, 3)},
    **dict.fromkeys(("SyncBatchNorm", "GroupNorm"), of_batch),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), of_features),
    "LocalResponseNorm": of_nothing,
}


def example(kind, shape, *arguments, training=True, bias=True, **options):
    """An example of a class of torch.nn, with parameters and running statistics that are not trivial.

    The bias is taken away afterwards: some classes have the option from torch 2.12 on.
    """

    def twin():
        torch.manual_seed(2)
        if kind is not torch.nn.LocalResponseNorm:
            options["dtype"] = torch.float64
        made = kind(*arguments, **options).train(training)
        if not bias:
            made.register_parameter("bias", None)
        with torch.no_grad():
            for tensor in (*made.parameters(), *made.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(torch.rand(tensor.shape) + 0.5)
        return made

    base = described[kind.__name__](twin(), values(shape))
    return dataclasses.replace(base, twin=twin, inputs=lambda: (values(shape),))


EXAMPLES = {
    "BatchNorm1d": example(torch.nn.BatchNorm1d, (5, 3), 3),
    "BatchNorm1d momentum=None bias=False": example(torch.nn.BatchNorm1d, (2, 3, 5), 3, momentum=None, bias=False),
    "BatchNorm2d": example(torch.nn.BatchNorm2d, (2, 3, 3, 2), 3, eps=1e-3, momentum=0.3),
    "BatchNorm2d eval": example(torch.nn.BatchNorm2d, (2, 3, 3, 2), 3, training=False),
    "BatchNorm2d affine=False": example(torch.nn.BatchNorm2d, (2, 3, 2, 3), 3, affine=False),
    "BatchNorm2d untracked": example(torch.nn.BatchNorm2d, (2, 3, 2, 3), 3, track_running_stats=False, training=False),
    "BatchNorm3d": example(torch.nn.BatchNorm3d, (2, 2, 2, 3, 2), 2, affine=False, track_running_stats=False),
    "SyncBatchNorm": example(torch.nn.SyncBatchNorm, (3, 2, 3), 2),
    "InstanceNorm1d": example(torch.nn.InstanceNorm1d, (3, 5), 3),
    "InstanceNorm2d": example(torch.nn.InstanceNorm2d, (3, 3, 2, 3), 3, affine=True, track_running_stats=True),
    "InstanceNorm2d eval": example(torch.nn.InstanceNorm2d, (2, 3, 2, 3), 3, track_running_stats=True, training=False),
    "InstanceNorm2d unbatched": example(torch.nn.InstanceNorm2d, (3, 2, 3), 3, track_running_stats=True),
    "InstanceNorm3d": example(torch.nn.InstanceNorm3d, (2, 2, 2, 3, 2), 2, affine=True),
    "GroupNorm": example(torch.nn.GroupNorm, (2, 6, 3), 3, 6),
    "GroupNorm in one": example(torch.nn.GroupNorm, (2, 5, 2, 2), 1, 5, bias=False),
    "GroupNorm affine=False": example(torch.nn.GroupNorm, (2, 6, 2), 2, 6, affine=False),
    "GroupNorm of channels alone": example(torch.nn.GroupNorm, (3, 6), 2, 6),
    "LayerNorm": example(torch.nn.LayerNorm, (3, 2, 5), 5),
    "LayerNorm of two": example(torch.nn.LayerNorm, (3, 4, 3), (4, 3), bias=False),
    "LayerNorm plain": example(torch.nn.LayerNorm, (3, 5), 5, elementwise_affine=False),
    "RMSNorm": example(torch.nn.RMSNorm, (3, 2, 5), 5),
    "RMSNorm of two": example(torch.nn.RMSNorm, (3, 4, 3), (4, 3), eps=0.1, elementwise_affine=False),
    "LocalResponseNorm": example(torch.nn.LocalResponseNorm, (2, 5, 3), 3, alpha=0.5),
    "LocalResponseNorm even": example(torch.nn.LocalResponseNorm, (2, 4, 2, 3), 4, alpha=0.5, beta=0.6, k=2.0),
}
SAMPLES = {
    "BatchNorm1d": 16,
    "BatchNorm2d": 14,
    "BatchNorm3d": 14,
    "GroupNorm": 20,
    **{f"InstanceNorm{dims}d": 12 for dims in (1, 2, 3)},
    "LayerNorm": 14,
    "LocalResponseNorm": 6,
    "RMSNorm": 12,
}
if not NORMS_HAVE_BIAS:
    SAMPLES |= {"BatchNorm1d": 14, "BatchNorm2d": 12, "BatchNorm3d": 12, "GroupNorm": 16}
    SAMPLES |= {f"InstanceNorm{dims}d": 8 for dims in (1, 2, 3)}


def rows() -> dict[str, Row]:
    """The constructors."""
    table = {}
    epsilon = [Wrong(v, TypeError, "eps") for v in ("a", [1.0], 1j)]
    places = {"device": not_a_device(), "dtype": not_a_dtype()}
    features = [*not_an_int("num_features"), Wrong(-1, RuntimeError, "negative"), Wrong(1 << 70, RuntimeError, ".")]
    of_channels = {
        "P_x": not_a_partition(),
        "num_features": features,
        "eps": epsilon,
        "momentum": [Wrong(v, TypeError, "momentum") for v in ("a", [1.0], 1j)],
        **places,
    }
    moved = {"device": "meta", "dtype": torch.float64}
    others = {"num_features": 3, "eps": 0.1, "momentum": None, **moved, "bias": False}
    for dims in (0, 1, 2, 3):
        name = f"DistributedBatchNorm{dims}d" if dims else "DistributedBatchNorm"
        table[f"nn.{name}"] = Row(
            getattr(dnn, name),
            lambda P, dims=dims: {"P_x": grid_of(P, dims + 2), "num_features": 2},
            of_channels if dims == 2 else {argument: wrong[:1] for argument, wrong in of_channels.items()},
            {**others, "affine": False, "track_running_stats": False},
        )
    for dims in (1, 2, 3):
        name = f"DistributedInstanceNorm{dims}d"
        table[f"nn.{name}"] = Row(
            getattr(dnn, name),
            lambda P, dims=dims: {"P_x": grid_of(P, dims + 2), "num_features": 2, "affine": True},
            {argument: wrong[:1] for argument, wrong in of_channels.items()},
            {**others, "affine": False, "track_running_stats": True},
        )
    channels = [
        *not_an_int("num_channels"),
        Wrong(-2, RuntimeError, "num_channels=-2; it must not be negative"),
        Wrong(3, ValueError, "divisible"),
    ]
    table["nn.DistributedGroupNorm"] = Row(
        dnn.DistributedGroupNorm,
        lambda P: {"P_x": grid_of(P, 3), "num_groups": 2, "num_channels": 4},
        {
            "P_x": not_a_partition(),
            "num_groups": [*not_an_int("num_groups"), *not_positive("num_groups")],
            "num_channels": channels,
            "eps": epsilon,
            **places,
        },
        {"num_groups": 4, "num_channels": 2, "eps": 0.1, "affine": False, **moved, "bias": False},
    )
    shape = [Wrong(v, TypeError, "normalized_shape") for v in ("a", None, 1.5, (1, 1.5))]
    shape += [Wrong(v, RuntimeError, "normalized_shape") for v in (-1, (), 1 << 70)]
    shape += [Wrong((1, 1, 1), ValueError, "dimensions for the features")]
    table["nn.DistributedLayerNorm"] = Row(
        dnn.DistributedLayerNorm,
        lambda P: {"P_x": grid_of(P, 2), "normalized_shape": 4},
        {"P_x": not_a_partition(), "normalized_shape": shape, "eps": epsilon, **places},
        {"normalized_shape": 3, "eps": 0.1, "elementwise_affine": False, **moved, "bias": False},
    )
    table["nn.DistributedRMSNorm"] = Row(
        dnn.DistributedRMSNorm,
        lambda P: {"P_x": grid_of(P, 2), "normalized_shape": 4},
        {"P_x": not_a_partition(), "normalized_shape": shape, "eps": epsilon, **places},
        {"normalized_shape": 3, "eps": 0.1, "elementwise_affine": False, **moved},
    )
    table["nn.DistributedLocalResponseNorm"] = Row(
        dnn.DistributedLocalResponseNorm,
        lambda P: {"P_x": grid_of(P, 3), "size": 3},
        {
            "P_x": not_a_partition(),
            "size": [*not_an_int("size"), *not_positive("size")],
            **{option: [Wrong(v, TypeError, option) for v in ("a", None, 1j)] for option in ("alpha", "beta", "k")},
        },
        {"size": 5, "alpha": 0.5, "beta": 0.5, "k": 2.0},
    )
    return table
