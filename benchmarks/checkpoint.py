"""Saving and loading beside raw MPI-IO: the time, and the memory of a rank beyond its blocks.

Run by ``mpiexec -n 2 python -m mpi4py benchmarks/checkpoint.py [FOLDER] [MIB]``. The same blocks of one matrix are
written by ``MPI.File.Write_all`` with a subarray view, and by ``distdl.save``; both wait until they are on the disk.
They take turns, and the medians are compared.
"""

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from mpi4py import MPI

import distdl

job = MPI.COMM_WORLD
ROUNDS = 5


def peak() -> float:
    """The most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Matrix(distdl.nn.Module):
    """One matrix, cut along its rows or its columns."""

    def __init__(self, P: distdl.Partition, shape: list[int], dim: int) -> None:
        super().__init__()
        self.declare_parameter("weight", P, shape, [0 if d == dim else None for d in range(2)])
        self.start = [0 if d != dim else self.layouts["weight"].intervals[d][0] for d in range(2)]
        torch.nn.init.normal_(self.weight)


def write_raw(path: Path, model: Matrix, shape: list[int]) -> None:
    """The block of each rank, by MPI-IO."""
    file = MPI.File.Open(job, str(path), MPI.MODE_CREATE | MPI.MODE_WRONLY)
    blocks = MPI.FLOAT.Create_subarray(shape, list(model.weight.shape), model.start).Commit()
    file.Set_view(4096, MPI.FLOAT, blocks)
    file.Write_all(model.weight.detach().numpy())
    file.Sync()
    file.Close()
    blocks.Free()


def read_raw(path: Path, model: Matrix, shape: list[int]) -> None:
    """The block of each rank, by MPI-IO."""
    file = MPI.File.Open(job, str(path), MPI.MODE_RDONLY)
    blocks = MPI.FLOAT.Create_subarray(shape, list(model.weight.shape), model.start).Commit()
    file.Set_view(4096, MPI.FLOAT, blocks)
    file.Read_all(model.weight.detach().numpy())
    file.Close()
    blocks.Free()


def seconds(action: Callable[[], None], new: Path | None = None) -> float:
    """Of the slowest rank. A file that is to be new is removed before."""
    job.Barrier()
    if new is not None and job.rank == 0:
        new.unlink(missing_ok=True)
    job.Barrier()
    start = time.perf_counter()
    action()
    return job.allreduce(time.perf_counter() - start, op=MPI.MAX)


def compare(model: Matrix, cut: str, shape: list[int], folder: Path) -> None:
    """Print the speed of both, in turns, and the memory that it takes beside the blocks."""
    before, mib = peak(), shape[0] * shape[1] / 2**18
    distdl.save(folder / "ours", model)
    distdl.load(folder / "ours", model)
    beyond = job.allreduce(peak() - before, op=MPI.MAX)
    actions = {
        "write": (lambda: write_raw(folder / "raw", model, shape), lambda: distdl.save(folder / "ours", model)),
        "read": (lambda: read_raw(folder / "raw", model, shape), lambda: distdl.load(folder / "ours", model)),
    }
    for what, (raw, ours) in actions.items():
        new = [folder / name if what == "write" else None for name in ("raw", "ours")]
        taken = [(seconds(raw, new[0]), seconds(ours, new[1])) for _ in range(ROUNDS)]
        theirs, own = (statistics.median(times) for times in zip(*taken, strict=True))
        if job.rank == 0:
            speeds = f"MPI-IO {mib / theirs:6.0f} MiB/s, distdl {mib / own:6.0f} MiB/s, ratio {theirs / own:.2f}"
            print(f"{what:5}, cut along {cut}: {speeds}", flush=True)
    if job.rank == 0:
        print(f"memory of a rank beyond its blocks: {beyond:.0f} MiB", flush=True)


def main() -> None:
    """Measure both cuts."""
    where = sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()
    mib = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    own = tempfile.TemporaryDirectory(dir=where) if job.rank == 0 else None
    folder = Path(job.bcast(own.name if own else None))
    shape = [mib * 2**18 // 4096, 4096]
    for dim, cut in enumerate(("rows", "columns")):
        compare(Matrix(distdl.Partition(job), shape, dim), cut, shape, folder)
    job.Barrier()
    if own is not None:
        own.cleanup()


main()
