"""The rows of the table of misuses, but for what layers are called with: see test_misuse_calls.py."""

import functools
from functools import partial
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

import distdl
import distdl.functional as df
import distdl.nn as dnn
from distdl import Partition, compatibility, memory, progress
from misuses import (
    Row,
    Wrong,
    grid_of,
    not_a_device,
    not_a_dtype,
    not_a_partition,
    not_an_int,
    not_axes,
    not_per_dimension,
    not_positive,
)

NOT_A_TENSOR = [Wrong(v, TypeError, "has to be a torch.Tensor") for v in (None, "x", 1.5, [1.0], np.ones(2), {})]


def rows() -> dict[str, Row]:
    """By public name."""
    table = {**primitives(), **layers(), **convolutions(), **functions(), **of_partitions(), **alone()}
    for name, row in table.items():
        if name.startswith("nn.Distributed") and name[-2:] in SAME_CODE and name not in IN_FULL:
            row.wrong = {argument: wrong[: SAME_CODE[name[-2:]]] for argument, wrong in row.wrong.items()}
    return table


# How much of the table families of layers with the same code run, but for some members.
SAME_CODE = {"1d": 1, "2d": 2, "3d": 1}
IN_FULL = ("nn.DistributedConv2d", "nn.DistributedMaxPool2d", "nn.DistributedAdaptiveMaxPool2d")


def primitives() -> dict[str, Row]:
    """The constructors of primitives, and the functions that construct and call."""
    flags = {"transpose_src": True, "transpose_dest": True, "preserve_batch": False}
    two = {"P_x": not_a_partition(), "P_y": not_a_partition()}
    one = {"P_x": not_a_partition()}
    halo = [Wrong(v, TypeError, "HaloExchange") for v in (None, 1.5, [(1, 1.5), 1], [None, 1], float("nan"))]
    halo += [Wrong([1], ValueError, "2 dimensions"), Wrong([1, 1, 1], ValueError, "2 dimensions")]
    halo += [
        Wrong([(1, 2, 3), 1], ValueError, "pair"),
        Wrong([1 << 70, 1], (ValueError, OverflowError), "HaloExchange"),
    ]
    halo_options = {
        "periodic": [
            Wrong(3, TypeError, "periodic=3"),
            Wrong([True], ValueError, "2 dimensions"),
            Wrong(None, TypeError, "None"),
        ],
        "fill_value": [Wrong(v, (TypeError, ValueError), "fill_value") for v in ("a", None, [1.0], 1j)],
    }
    room = [Wrong(v, TypeError, "HaloExchange") for v in (1.5, [[1.5, 1], [0, 0]])]
    room += [Wrong([[1, 1]], ValueError, "2 dimensions")]

    def axes(name: str) -> dict[str, list[Wrong]]:
        keep = [Wrong(v, ValueError, "not both") for v in ([0], [])]
        return {**one, name: not_axes(name), "axes_keep": keep}

    table = {}
    for make, call, name, wrong, other in (
        (dnn.Broadcast, df.broadcast, "", two, flags),
        (dnn.SumReduce, df.sum_reduce, "", two, flags),
        (dnn.Repartition, df.repartition, "", two, {"preserve_batch": False}),
        (dnn.AllSumReduce, df.all_sum_reduce, "axes_reduce", axes("axes_reduce"), {}),
        (dnn.AllGather, df.all_gather, "axes_all_gather", axes("axes_all_gather"), {}),
        (dnn.ReduceScatter, df.reduce_scatter, "axes_reduce_scatter", axes("axes_reduce_scatter"), {}),
    ):

        def good(P: Partition, name: str = name) -> dict[str, Any]:
            square = grid_of(P, 2)
            return {"P_x": square, name: [1]} if name else {"P_x": square, "P_y": square}

        def good_call(P: Partition, good: Any = good) -> dict[str, Any]:
            return {"x": torch.ones(2, 2), **good(P)}

        if name:
            other = {name: [0], "axes_keep": None}
        free = tuple(one for one in other if other[one] is None)
        other = {key: value for key, value in other.items() if value is not None}
        table[f"nn.{make.__name__}"] = Row(make, good, wrong, other, free)
        table[f"functional.{call.__name__}"] = Row(call, good_call, {**wrong, "x": NOT_A_TENSOR}, other, free)

    def one_halo(P: Partition) -> dict[str, Any]:
        return {"P_x": grid_of(P, 2), "halo": 1}

    agreed = {"periodic": True, "fill_value": 2.0}
    table["nn.HaloExchange"] = Row(
        dnn.HaloExchange,
        one_halo,
        {**one, "halo": halo, **halo_options, "recv_buffer_shape": room},
        agreed,
        free=("send_buffer_shape",),
    )
    table["nn.HaloExchange with room"] = Row(
        dnn.HaloExchange,
        lambda P: {
            "P_x": grid_of(P, 2),
            "halo": [[0, 0], [1, 1]],
            "recv_buffer_shape": [[0, 0], [1, 1]],
            "send_buffer_shape": [[0, 0], [int(P.rank > 0), int(P.rank < P.size - 1)]],
        },
        {
            "halo": [*room, Wrong([[0, 0], [0, 0]], ValueError, "at most the room")],
            "recv_buffer_shape": [*room, Wrong([[0, 0], [2, 1]], ValueError, "at most the room")],
            "send_buffer_shape": [*room, Wrong([[3, 3], [3, 3]], ValueError, "sends 3 elements")],
        },
        free=("periodic", "fill_value", "P_x"),
    )
    table["functional.halo_exchange"] = Row(
        df.halo_exchange,
        lambda P: {"x": torch.ones(2, 2), **one_halo(P)},
        {**one, "halo": halo, **halo_options, "x": NOT_A_TENSOR},
        agreed,
    )
    return table


def pool(name: str, **more: Any) -> dict[str, list[Wrong]]:
    """What pooling layers must not be passed."""
    return {
        "P_x": not_a_partition(),
        "kernel_size": [*not_per_dimension("kernel_size"), *not_positive("kernel_size")],
        "stride": [*not_per_dimension("stride", none=True), *not_positive("stride")],
        **more,
    }


def layers() -> dict[str, Row]:
    """The constructors of layers other than convolutions."""
    table = {}
    padding = [*not_per_dimension("padding"), Wrong(-1, RuntimeError, "padding"), Wrong(2, RuntimeError, "padding")]
    dilation = [*not_per_dimension("dilation"), *not_positive("dilation")]
    agreed = {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True}
    size = [Wrong(v, TypeError, "output_size") for v in (1.5, {"a": 1}, float("nan"))]
    size += [Wrong((1,) * 7, RuntimeError, "7 values"), Wrong(-1, RuntimeError, "negative")]
    size += [Wrong(1 << 70, RuntimeError, "output_size")]
    for dims in (1, 2, 3):
        P_x = partial(lambda P, dims: {"P_x": grid_of(P, dims + 2)}, dims=dims)
        windows = partial(lambda P, dims: {"P_x": grid_of(P, dims + 2), "kernel_size": 2}, dims=dims)
        table[f"nn.DistributedMaxPool{dims}d"] = Row(
            getattr(dnn, f"DistributedMaxPool{dims}d"),
            windows,
            pool("MaxPool", padding=padding, dilation=dilation),
            {**agreed, "dilation": 2, "return_indices": True},
        )
        table[f"nn.DistributedAvgPool{dims}d"] = Row(
            getattr(dnn, f"DistributedAvgPool{dims}d"),
            windows,
            pool(
                "AvgPool",
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
                "LPPool",
                norm_type=[
                    Wrong("a", ValueError, "not a number"),
                    Wrong(None, TypeError, "not a number"),
                    Wrong(0, ZeroDivisionError, "zero"),
                    Wrong(1j, TypeError, "not a number"),
                ],
            ),
            {"norm_type": 3, "kernel_size": 3, "stride": 3, "ceil_mode": True},
        )
        for kind in ("Max", "Avg"):
            table[f"nn.DistributedAdaptive{kind}Pool{dims}d"] = Row(
                getattr(dnn, f"DistributedAdaptive{kind}Pool{dims}d"),
                partial(lambda P, good: {**good(P), "output_size": 2}, good=P_x),
                {"P_x": not_a_partition(), "output_size": size},
                {"output_size": 3, **({"return_indices": True} if kind == "Max" else {})},
            )
    reduction = [Wrong(v, ValueError, "reduction") for v in ("average", None, 3, "")]
    table["nn.DistributedMSELoss"] = Row(
        dnn.DistributedMSELoss,
        lambda P: {"P_x": P},
        {"P_x": not_a_partition(), "reduction": reduction},
        {"reduction": "sum"},
    )
    table["nn.DistributedCrossEntropyLoss"] = Row(
        dnn.DistributedCrossEntropyLoss,
        lambda P: {"P_x": grid_of(P, 2)},
        {
            "P_x": not_a_partition(),
            "reduction": reduction,
            "weight": [Wrong(v, TypeError, "weight") for v in ([1.0], "a", 3, np.ones(2))],
            "ignore_index": [Wrong(v, TypeError, "ignore_index") for v in ("a", None, 1.5)],
            "label_smoothing": [Wrong(v, ValueError, r"\[0, 1\]") for v in (-0.1, 1.5, float("nan"), float("inf"))]
            + [Wrong(v, TypeError, "label_smoothing") for v in ("a", None)],
        },
        {"reduction": "sum", "weight": torch.ones(2), "ignore_index": 1, "label_smoothing": 0.5},
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
            "P_y": not_a_partition(),
            "P_W": not_a_partition(),
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
        },
        {"pad": (2, 1), "mode": "circular", "value": 3.0},
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
        },
        {"size": 4, "mode": "bilinear"},
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
            "x": NOT_A_TENSOR,
            "antialias": [Wrong(True, NotImplementedError, "antialias")],
        },
        {"size": 4},
    )
    table["nn.Module"] = Row(dnn.Module, lambda P: {}, alone=True)
    return table


def convolutions() -> dict[str, Row]:
    """The constructors of convolutions, of which all have the same options."""
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

            wrong = {
                "P_x": not_a_partition(),
                "in_channels": [*not_an_int("in_channels"), *not_positive("in_channels")],
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
            partitions = {"P_y": not_a_partition(), "P_w": not_a_partition()}
            if many:
                wrong |= partitions
            elif kind != "FeatureConv":
                wrong |= {name: values[1:] for name, values in partitions.items()}  # None is the default
            name = f"Distributed{kind}{dims}d"
            table[f"nn.{name}"] = Row(getattr(dnn, name), good, wrong, other)
    return table


@functools.wraps(df.start)
def start_and_wait(*arguments: Any, **options: Any) -> torch.Tensor:
    """So that nothing stays under way."""
    return df.wait(df.start(*arguments, **options))


def functions() -> dict[str, Row]:
    """Functions of models, and in two halves."""

    def model(P: Partition) -> dict[str, Any]:
        return {"model": dnn.DistributedConv1d(grid_of(P, 3), 1, 1, 1)}

    root = [Wrong(v, ValueError, "root") for v in (-1, 1 << 40, "a", None, 1.5)]
    state = {"weight": torch.ones(1, 1, 1), "bias": torch.ones(1)}
    wrong_states: list[Any] = [
        None,
        {},
        {"weight": state["weight"]},
        {**state, "more": torch.ones(1)},
        {**state, "bias": torch.ones(2)},
        {**state, "bias": None},
        {**state, "bias": [1.0]},
    ]
    return {
        "sequential_state_dict": Row(distdl.sequential_state_dict, model, {"root": root}, free=("model",)),
        "load_sequential": Row(
            distdl.load_sequential,
            lambda P: {**model(P), "state_dict": dict(state)},
            {
                "root": root,
                "state_dict": [
                    *[Wrong(v, RuntimeError, "load_sequential") for v in wrong_states],
                    Wrong(3, TypeError, "load_sequential"),
                    Wrong("a", (TypeError, ValueError), "load_sequential"),
                ],
            },
            free=("model",),
        ),
        "functional.start": Row(
            start_and_wait,
            lambda P: {"function": df.all_sum_reduce, "x": torch.ones(2), "P_x": grid_of(P, 2), "axes_reduce": [1]},
            {
                "function": [
                    Wrong(v, ValueError, "no primitive")
                    for v in (None, torch.add, "broadcast", df.wait, df.interpolate)
                ],
                "x": NOT_A_TENSOR,
            },
            free=("arguments", "options"),
        ),
        "functional.wait": Row(
            lambda started: df.wait(started() if callable(started) else started),
            lambda P: {"started": lambda: df.start(df.all_sum_reduce, torch.ones(2), P, [0])},
            {"started": [Wrong(v, TypeError, "not what start") for v in (None, 3, torch.ones(2))]},
            alone=True,
        ),
    }


def of_partitions() -> dict[str, Row]:
    """Partition and its methods."""

    def method(name: str, good: dict[str, Any], wrong: dict[str, list[Wrong]], other: Any = None, **more: Any) -> Row:
        return Row(getattr(Partition, name), lambda P: {"self": P, **good}, wrong, other or {}, **more)

    numbers = [Wrong(v, TypeError, "create_") for v in (3, None, "ab", [0.5], [None], [[0]])]
    shape = [*numbers, *[Wrong(v, ValueError, "at least 1") for v in ([0], [-1], [1 << 40], [5, 5])]]
    ranks = [*numbers, *[Wrong(v, ValueError, "distinct") for v in ([], [0, 0], [-1], [99])]]
    worker = [Wrong(v, ValueError, "rank") for v in (-1, 99)] + [Wrong(v, TypeError, ".") for v in ("a", None, 1.5)]
    table = {
        "create_partition_inclusive": method("create_partition_inclusive", {"ranks": [0]}, {"ranks": ranks}),
        "create_cartesian_topology_partition": method(
            "create_cartesian_topology_partition", {"shape": [1, 1]}, {"shape": shape}, {"shape": [1]}
        ),
        "create_cartesian_subtopology_partition": method(
            "create_cartesian_subtopology_partition",
            {"keep": [True]},
            {
                "keep": [
                    Wrong([True, True], ValueError, "2 values"),
                    Wrong([], ValueError, "0 values"),
                    Wrong(3, TypeError, "keep|create_"),
                    Wrong(None, TypeError, "create_"),
                ]
            },
            {"keep": [False]},
        ),
        "create_partition_union": method(
            "create_partition_union",
            {"other": Partition(MPI.COMM_WORLD)},
            {"other": [Wrong(v, ValueError, "same communicator") for v in (None, 3, "P", [0])]},
        ),
        "broadcast_data": method(
            "broadcast_data",
            {"data": 1, "root": 0, "P_data": None},
            {
                "root": [
                    Wrong(-1, ValueError, "worker -1"),
                    Wrong(99, ValueError, "worker 99"),
                    Wrong("a", TypeError, "broadcast_data"),
                    Wrong(None, TypeError, "broadcast_data"),
                ],
                "P_data": [Wrong(v, TypeError, "P_data") for v in (3, "P", [0])],
            },
            free=("data",),
        ),
        "allgather_data": method(
            "allgather_data",
            {"data": 1},
            {"data": [Wrong(v, ValueError, "allgather_data") for v in (None, object(), {}, print)]},
        ),
        "allreduce_data": method(
            "allreduce_data",
            {"data": 1.0},
            {
                "data": [Wrong(v, ValueError, "allreduce_data") for v in (None, {}, print)],
                "op": [Wrong(v, TypeError, "op=") for v in (None, "SUM", 3)],
            },
            {"data": [1.0, 2.0], "op": MPI.MAX},
        ),
        "print_sequential": method("print_sequential", {"text": ""}, {}, free=("text",)),
        "cartesian_index": method("cartesian_index", {"rank": 0}, {"rank": worker}, alone=True),
        "neighbor_ranks": method("neighbor_ranks", {"rank": 0}, {"rank": worker}, alone=True),
        "deactivate": Row(Partition.deactivate, lambda P: {"self": Partition(MPI.COMM_WORLD)}, alone=True),
    }
    found = {f"Partition.{name}": row for name, row in table.items()}
    comms = [Wrong(v, TypeError, "intracommunicator") for v in (None, 3, "comm", [0], MPI.COMM_WORLD.group)]
    found["MPIPartition"] = Row(Partition, lambda P: {"comm": MPI.COMM_WORLD}, {"comm": comms}, alone=True)
    return found


def alone() -> dict[str, Row]:
    """What concerns this rank only."""
    blocks = np.ones((2, 1), dtype=np.int64)
    extents = {"P_shape": [2], "index": [0], "shape": [5]}
    wrong_extents = {
        name: [Wrong(3, TypeError, "."), Wrong(["a"], ValueError, "."), Wrong([1, 2], ValueError, "zip")]
        for name in extents
    }
    box = {"r0_start": [0], "r0_stop": [2], "r1_start": [1], "r1_stop": [3]}
    wrong_box = {name: [Wrong("a", TypeError, "."), Wrong(None, TypeError, ".")] for name in box}

    def structure_check(enabled: Any) -> None:
        with distdl.structure_check(enabled):
            pass

    shapes = [Wrong(v, (AttributeError, TypeError, IndexError, ValueError), ".") for v in (None, 3, "a")]
    return {
        "zero_volume_tensor": Row(
            distdl.zero_volume_tensor,
            lambda P: {},
            {
                "batch": [Wrong("a", TypeError, "."), Wrong(-1, RuntimeError, "negative"), Wrong(1.5, TypeError, ".")],
                "dtype": [Wrong("float32", TypeError, "dtype")],
                "device": [Wrong("nowhere", RuntimeError, "device")],
                "requires_grad": [Wrong("a", TypeError, ".")],
            },
            alone=True,
        ),
        "TensorStructure": Row(
            distdl.TensorStructure,
            lambda P: {"tensor": torch.ones(2)},
            {"tensor": [Wrong(v, AttributeError, ".") for v in (None, 3, "a")]},
            alone=True,
        ),
        "structure_check": Row(
            structure_check,
            lambda P: {"enabled": True},
            {"enabled": [Wrong(v, TypeError, ".") for v in ("a", [True], 1.5)]},
            alone=True,
        ),
        "CommStats": Row(
            distdl.CommStats,
            lambda P: dict.fromkeys(distdl.CommStats.__dataclass_fields__, 0),
            alone=True,
            free=tuple(distdl.CommStats.__dataclass_fields__),
        ),
        "comm_stats": Row(distdl.comm_stats, lambda P: {}, alone=True),
        "reset_comm_stats": Row(distdl.reset_comm_stats, lambda P: {}, alone=True),
        "memory.set_pool_limit": Row(
            memory.set_pool_limit,
            lambda P: {"bytes": memory.pool_limit()},
            {
                "bytes": [
                    Wrong(-1, ValueError, "bytes=-1"),
                    Wrong("a", TypeError, "."),
                    Wrong(None, TypeError, "."),
                    Wrong(1.5, TypeError, "."),
                ]
            },
            alone=True,
        ),
        "memory.pool_limit": Row(memory.pool_limit, lambda P: {}, alone=True),
        "memory.pool_size": Row(memory.pool_size, lambda P: {}, alone=True),
        "memory.empty_pool": Row(memory.empty_pool, lambda P: {}, alone=True),
        "memory.set_staging": Row(
            memory.set_staging,
            lambda P: {"when": memory.staging()},
            {"when": [Wrong(v, ValueError, "set_staging") for v in ("often", None, 3)]},
            alone=True,
        ),
        "memory.staging": Row(memory.staging, lambda P: {}, alone=True),
        "progress.set_progress_thread": Row(
            progress.set_progress_thread,
            lambda P: {"on": progress.progress_thread()},
            {"on": [Wrong(v, TypeError, ".") for v in ("a", [1], 1.5)]},
            alone=True,
        ),
        "progress.progress_thread": Row(progress.progress_thread, lambda P: {}, alone=True),
        "compatibility.compute_subtensor_shapes_balanced": Row(
            compatibility.compute_subtensor_shapes_balanced,
            lambda P: {"structure": distdl.TensorStructure(torch.ones(5)), "shape": [2]},
            {
                "structure": [Wrong(v, AttributeError, "shape") for v in (None, 3)],
                "shape": [Wrong(3, TypeError, "."), Wrong([1, 1], ValueError, "zip")],
            },
            alone=True,
        ),
        "compatibility.compute_subtensor_start_indices": Row(
            compatibility.compute_subtensor_start_indices, lambda P: {"shapes": blocks}, {"shapes": shapes}, alone=True
        ),
        "compatibility.compute_subtensor_stop_indices": Row(
            compatibility.compute_subtensor_stop_indices, lambda P: {"shapes": blocks}, {"shapes": shapes}, alone=True
        ),
        **{
            f"compatibility.{name}": Row(
                getattr(compatibility, name), lambda P: dict(extents), wrong_extents, alone=True
            )
            for name in ("compute_subshape", "compute_start_index", "compute_stop_index")
        },
        "compatibility.compute_intersection": Row(
            compatibility.compute_intersection, lambda P: dict(box), wrong_box, alone=True
        ),
        "functional.ZeroVolumeCorrectorFunction": Row(
            df.ZeroVolumeCorrectorFunction.apply,
            lambda P: {"input": torch.ones(2)},
            alone=True,
            free=("args", "kwargs"),
        ),
    }
