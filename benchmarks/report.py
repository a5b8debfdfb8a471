"""What comes out: rows of a table, printed as they are measured and written as JSON."""

from __future__ import annotations

import argparse
import json
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
SMALL, LARGE = 1 << 10, 1 << 20  # bytes: at the first the goal is a difference, from the second on a ratio
MOST_OF_A_MOVE, MOST_OF_A_SUM = 1.05, 0.5
MICROSECONDS_OVER, MICROSECONDS_OVER_UNCHECKED = 10, 3


def goal(primitive: str, direction: str, size: int, median: dict[str, float]) -> tuple[str, float]:
    """The goal for a row of the table, in words and in seconds. It is relative to the first that is not distdl."""
    reference = next(name for name in median if name != "distdl")
    aim, most = "", float("inf")
    if size >= LARGE:
        ratio = MOST_OF_A_SUM if (primitive, direction) in SUMS else MOST_OF_A_MOVE
        aim, most = f"{ratio} {reference}", ratio * median[reference]
    elif size == SMALL:
        over = MICROSECONDS_OVER_UNCHECKED if primitive.endswith("unchecked") else MICROSECONDS_OVER
        aim, most = f"{reference} + {over} us", median[reference] + 1e-6 * over
    if "gloo" in median:
        aim, most = aim or "1 gloo", min(most, median["gloo"])
    return aim, most


def row(primitive: str, direction: str, size: int, names: Sequence[str], times: NDArray[np.float64]) -> Row:
    """What is kept of the times [contestant, repeat], in seconds."""
    median = dict(zip(names, np.median(times, axis=1).tolist(), strict=True))
    aim, most = goal(primitive, direction, size, median)
    return {
        "primitive": primitive,
        "direction": direction,
        "bytes": size,
        "repeats": times.shape[1],
        "median": median,
        "min": dict(zip(names, times.min(axis=1).tolist(), strict=True)),
        "goal": aim,
        "met": median["distdl"] <= most,
        "ratio": {name: median["distdl"] / median[name] for name in names if name != "distdl"},
    }


def header(row: Row) -> str:
    """What stands over the lines of rows of the same contestants."""
    names, ratios = (
        "".join(f"{name:>10}" for name in row["median"]),
        "".join(f"{'/ ' + name:>9}" for name in row["ratio"]),
    )
    return f"{'median, in us':22} {'direction':9} {'size':>7} {names} {ratios}  repeats  goal"


def line(row: Row) -> str:
    """A row of the table under the header of its contestants."""
    medians = "".join(f"{1e6 * median:10.1f}" for median in row["median"].values())
    ratios = "".join(f"{ratio:9.2f}" for ratio in row["ratio"].values())
    what = f"{row['primitive']:22} {row['direction']:9} {size_text(row['bytes']):>7}"
    return f"{what} {medians} {ratios} {row['repeats']:8}  {row['goal']}{'' if row['met'] else ': not met'}"


def save(figures: dict[str, Any], file: Path) -> None:
    """Write tables as JSON, a row on each line, for people to compare."""
    rows = (f"{json.dumps(name)}: {_lines(table)}" for name, table in figures.items())
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def _lines(table: Any) -> str:
    return "[\n" + ",\n".join(map(json.dumps, table)) + "\n]" if isinstance(table, list) else json.dumps(table)


def size_text(size: int) -> str:
    """1 KiB for 1024."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def size_from(text: str) -> int:
    """1024 from 1K."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = text if unit == 1 else text[:-1]
    size = int(number) * unit if number.isdigit() else 0
    if size < 1024 or size.bit_count() != 1:
        raise argparse.ArgumentTypeError(f"{text} is not a power of two of at least 1K")
    return size


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
