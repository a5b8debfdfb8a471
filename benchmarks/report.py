"""What comes out: rows of a table, printed as they are measured and written as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

Row = dict[str, Any]

HEADER = """\
                                            median, microseconds      ratio of medians
primitive            direction    size     distdl       MPI      gloo     / MPI   / gloo  repeats  goal
------------------------------------------------------------------------------------------------------------------"""

# What is summed on the way: the other directions only move data.
SUMS = {
    ("Broadcast", "adjoint"),
    ("Broadcast-unchecked", "adjoint"),
    ("SumReduce", "forward"),
    ("AllSumReduce", "forward"),
    ("AllSumReduce", "adjoint"),
    ("AllGather", "adjoint"),
    ("ReduceScatter", "forward"),
}
MICROSECONDS_OVER_MPI = 10
MICROSECONDS_OVER_MPI_UNCHECKED = 3


def goal(primitive: str, direction: str, size: int, median: dict[str, float]) -> tuple[str, bool]:
    """The goal for a row of the table, and whether it is met."""
    own, mpi, gloo = median["distdl"], median["MPI"], median["gloo"]
    if size >= 1 << 20:
        most = 0.5 if (primitive, direction) in SUMS else 1.05
        return f"{most} MPI", own <= most * mpi and own <= gloo
    if size == 1 << 10:
        over = MICROSECONDS_OVER_MPI_UNCHECKED if primitive.endswith("unchecked") else MICROSECONDS_OVER_MPI
        return f"MPI + {over} us", own <= mpi + 1e-6 * over and own <= gloo
    return "1 gloo", own <= gloo


def row(primitive: str, direction: str, size: int, names: Sequence[str], times: NDArray[np.float64]) -> Row:
    """What is kept of the times [contestant, repeat], in seconds."""
    median = dict(zip(names, np.median(times, axis=1).tolist(), strict=True))
    aim, met = goal(primitive, direction, size, median)
    return {
        "primitive": primitive,
        "direction": direction,
        "bytes": size,
        "repeats": times.shape[1],
        "median": median,
        "min": dict(zip(names, times.min(axis=1).tolist(), strict=True)),
        "goal": aim,
        "met": met,
        "ratio": {name: median["distdl"] / median[name] for name in names if name != "distdl"},
    }


def line(row: Row) -> str:
    """A row of the table under HEADER."""
    medians = "".join(f"{1e6 * median:10.1f}" for median in row["median"].values())
    ratios = "".join(f"{ratio:9.2f}" for ratio in row["ratio"].values())
    what = f"{row['primitive']:20} {row['direction']:9} {size_text(row['bytes']):>7}"
    return f"{what} {medians} {ratios} {row['repeats']:8}  {row['goal']}{'' if row['met'] else ': not met'}"


def size_text(size: int) -> str:
    """1 KiB for 1024."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    packages = ("distdl", "torch", "mpi4py", "numpy")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads per rank": torch.get_num_threads(),
        "MPI library": " ".join(MPI.Get_library_version().splitlines()[0].split()),
        "Python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
