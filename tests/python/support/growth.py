"""Counts what stays alive: tensors that Python knows, and memory."""

import ctypes
import gc

import torch

import distdl
from support.ranks import together

BYTES = 1 << 16  # may come and go: a leak of five large blocks is more
process = ctypes.CDLL(None)


class Memory(ctypes.Structure):
    """The report of malloc on itself (struct mallinfo2 of the GNU C library)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


process.mallinfo2.restype = Memory


def malloc_bytes():
    """The bytes allocated in small blocks, and in blocks that malloc maps by themselves."""
    report = process.mallinfo2()
    return report.uordblks, report.hblkhd


def alive():
    """The number of tensors, and the bytes that malloc and the pool have handed out, after garbage collection."""
    gc.collect()
    distdl.memory.empty_pool()
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    return tensors, sum(malloc_bytes()) + distdl.memory.pool_used()


def assert_stays(step, name=""):
    """Five steps leave no tensor and no memory on any rank.

    The pools of MPI and of torch grow in the first steps, and may grow once more later; a leak grows each time.
    """
    counts = []
    for _ in range(4):
        for _ in range(5):
            step()
        counts.append(together(alive()))
        if len(counts) > 1 and all(map(_same, *counts[-2:])):
            return
    raise AssertionError(f"{name}: (tensors, bytes) of each rank after every five steps: {counts}")


def _same(before, after):
    return before[0] == after[0] and after[1] - before[1] < BYTES
