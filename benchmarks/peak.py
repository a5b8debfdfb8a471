"""How much memory a call needs at its peak: beside the result, at most one message."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch
from entries import Entry
from mpi4py import MPI
from report import Row
from torch import Tensor

import distdl
from distdl import Partition

SLACK = 4 << 20  # bytes: a huge page for each of the two, and what the allocator and MPI take for themselves
Result = TypeVar("Result")


def peaks(entry: Entry, size: int, comm: MPI.Intracomm) -> Iterator[Row]:
    """Memory for both directions, with tensors of ``size`` bytes, on the rank that exceeds the goal most.

    It is the largest growth of the process's resident memory during the call: MPI's own buffers and all libraries
    count. A first call has connected the ranks, and the pool is emptied before the second.
    """
    case = entry.make(Partition(), size // torch.float32.itemsize)
    layer = case.construct()
    message = torch.float32.itemsize * case.message
    y = layer(case.x)
    gradient = torch.randn_like(y)

    def forward() -> Tensor:
        with torch.no_grad():
            return layer(case.x)

    def adjoint() -> Tensor:
        return torch.autograd.grad(y, case.x, gradient, retain_graph=True)[0]

    for direction, run in (("forward", forward), ("adjoint", adjoint)):
        run()
        distdl.memory.empty_pool()
        comm.Barrier()
        grown, result = growth(run)
        grown, result = max(comm.allgather((grown, result.nbytes)), key=lambda sizes: sizes[0] - sizes[1])
        yield {
            "primitive": entry.name, "direction": direction, "bytes": size,
            "growth": grown, "result": result, "message": message,
            "goal": "result + message", "met": grown <= result + message + SLACK,
        }  # fmt: skip


def growth(run: Callable[[], Result]) -> tuple[int, Result]:
    """Bytes of resident memory at the peak, over those before; the result.

    Memory that the C library keeps for later goes back to the system first: else what uses it would not count.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from now on
    before = _status("VmRSS")
    result = run()
    return _status("VmHWM") - before, result


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (text,) = (line for line in lines if line.startswith(name + ":"))
    return 1024 * int(text.split()[1])


def header(row: Row) -> str:
    """The heading of the table."""
    return f"{'peak, in MiB':22} {'direction':9} {'growth':>9} {'result':>9} {'message':>9}  goal"


def line(row: Row) -> str:
    """A row of the table."""
    columns = "".join(f"{row[name] / (1 << 20):10.1f}" for name in ("growth", "result", "message"))
    return f"{row['primitive']:22} {row['direction']:9}{columns}  {row['goal']}{'' if row['met'] else ': not met'}"
