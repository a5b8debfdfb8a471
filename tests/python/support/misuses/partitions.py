"""The table of misuses: partitions and their methods."""

from typing import Any

from mpi4py import MPI

import distdl
from distdl import Partition
from support.misuses.table import Row, Wrong, not_a_partition


def rows() -> dict[str, Row]:
    """By public name."""

    def method(name: str, good: dict[str, Any], wrong: dict[str, list[Wrong]], other: Any = None, **fields: Any) -> Row:
        return Row(getattr(Partition, name), lambda P: {"self": P, **good}, wrong, other or {}, **fields)

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
        "slices": method("slices", {"shape": [4]}, {}, free=("shape",), alone=True),
        "deactivate": Row(Partition.deactivate, lambda P: {"self": Partition(MPI.COMM_WORLD)}, alone=True),
    }
    entries = {f"Partition.{name}": row for name, row in table.items()}
    comms = [Wrong(v, TypeError, "intracommunicator") for v in (None, 3, "comm", [0], MPI.COMM_WORLD.group)]
    entries["MPIPartition"] = Row(Partition, lambda P: {"comm": MPI.COMM_WORLD}, {"comm": comms}, alone=True)
    entries["arrange"] = Row(
        distdl.arrange,
        lambda P: {"P_world": P, "shape": [1, 1], "weights": [1.0, 1.0], "host": "a"},
        {
            "P_world": not_a_partition(),
            "shape": [
                *[Wrong(v, TypeError, "arrange") for v in (3, None, "ab", [0.5, 1], [None], [[0]])],
                *[Wrong(v, ValueError, "at least 1") for v in ([0, 1], [-1, 1], [1 << 40, 1], [5, 5])],
                Wrong([1], ValueError, "weights"),
            ],
            "weights": [
                *[Wrong(v, ValueError, "weights") for v in ([1.0], [1, -1], [1, float("nan")], [float("inf"), 1], [])],
                *[Wrong(v, TypeError, "arrange") for v in (3, [None, 1], [[1], [1]])],
                Wrong("ab", ValueError, "arrange"),
            ],
            "host": [Wrong(v, TypeError, "host=") for v in (3, b"a", ["a"])],
        },
        {"weights": [1.0, 2.0]},
    )
    return entries
