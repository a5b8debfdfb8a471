"""The table of misuses: primitives, as layers and as functions, and functions of models."""

import functools
from typing import Any

import torch

import distdl
import distdl.functional as df
import distdl.nn as dnn
from distdl import Partition
from support.misuses.table import Row, Wrong, grid_of, not_a_partition, not_a_tensor, not_axes


def rows() -> dict[str, Row]:
    """By public name."""
    return {**primitives(), **functions()}


def primitives() -> dict[str, Row]:
    """The constructors of primitives, and the functions that construct and call."""
    flags = {"transpose_src": True, "transpose_dest": True, "preserve_batch": False}
    two = {"P_x": not_a_partition(), "P_y": not_a_partition()}
    no_partition = {"P_x": not_a_partition()}
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
        return {**no_partition, name: not_axes(name), "axes_keep": keep}

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
        free = tuple(option for option in other if other[option] is None)
        other = {key: value for key, value in other.items() if value is not None}
        table[f"nn.{make.__name__}"] = Row(make, good, wrong, other, free)
        table[f"functional.{call.__name__}"] = Row(call, good_call, {**wrong, "x": not_a_tensor()}, other, free)

    def one_halo(P: Partition) -> dict[str, Any]:
        return {"P_x": grid_of(P, 2), "halo": 1}

    agreed = {"periodic": True, "fill_value": 2.0}
    table["nn.HaloExchange"] = Row(
        dnn.HaloExchange,
        one_halo,
        {**no_partition, "halo": halo, **halo_options, "recv_buffer_shape": room},
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
        {**no_partition, "halo": halo, **halo_options, "x": not_a_tensor()},
        agreed,
    )
    return table


@functools.wraps(df.start)
def start_and_wait(*arguments: Any, **options: Any) -> torch.Tensor:
    """Both halves, so that nothing stays under way."""
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
                "x": not_a_tensor(),
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
