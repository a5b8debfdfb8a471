"""Fourier transforms beside mpi4py-fft and torch.fft on one thread: the same transforms on the same ranks in one run.

    mpiexec -n 2 python -m mpi4py benchmarks/fft.py [--repeats 15] [--only 2048x2048] [--parts 1]

mpi4py-fft is optional; it needs the headers of FFTW to be installed. Both leave the spectrum transposed, and begin with
blocks along the first dimension. All ranks measure torch.fft of the whole tensor at once, each with one thread.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import torch
from contestants import Contestant
from mpi4py import MPI
from timing import measure

import distdl

try:
    from mpi4py_fft import PFFT, newDistArray
except ImportError:
    PFFT = None

SHAPES = [(2048, 2048), (128, 128, 128), (256, 256, 256)]
Call = Callable[[], torch.Tensor]


def distributed(shape: tuple[int, ...], dtype: torch.dtype, backward: bool, parts: int) -> Call:
    """With the spectrum in pencils."""
    P = distdl.Partition(MPI.COMM_WORLD)
    P_x = P.create_cartesian_topology_partition([P.size, *[1] * (len(shape) - 1)])
    rows = len(range(P.rank, shape[0], P.size))
    x = torch.rand(rows, *shape[1:]).to(dtype)
    forward, inverse = (
        (distdl.fft.fftn, distdl.fft.ifftn) if dtype.is_complex else (distdl.fft.rfftn, distdl.fft.irfftn)
    )
    y, P_y = forward(x, P_x, out="pencil", parts=parts)
    if backward:
        return lambda: inverse(y, P_y, s=shape, out=P_x, parts=parts)
    return lambda: forward(x, P_x, out="pencil", parts=parts)


def by_mpi4py_fft(shape: tuple[int, ...], dtype: torch.dtype, backward: bool) -> Call:
    """Planned by measuring."""
    numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
    grid = (0, *[1] * (len(shape) - 1))
    plan = PFFT(MPI.COMM_WORLD, list(shape), dtype=numpy_dtype, grid=grid)
    x, y = newDistArray(plan, False), newDistArray(plan, True)
    x[:] = np.random.default_rng(0).random(x.shape)
    plan.forward(x, y)
    return (lambda: plan.backward(y, x)) if backward else (lambda: plan.forward(x, y))


def sequential(shape: tuple[int, ...], dtype: torch.dtype, backward: bool) -> Call:
    """The whole tensor on each rank."""
    x = torch.rand(shape).to(dtype)
    forward, inverse = (torch.fft.fftn, torch.fft.ifftn) if dtype.is_complex else (torch.fft.rfftn, torch.fft.irfftn)
    y = forward(x)
    return (lambda: inverse(y, s=shape)) if backward else (lambda: forward(x))


def main() -> None:
    """Print a line for each transform: median milliseconds, and the medians of ratios within a repeat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--parts", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        if options.only not in name:
            continue
        for dtype in (torch.float32, torch.complex64):
            for backward in (False, True):
                case = (shape, dtype, backward)
                ours = Contestant("distdl", distributed(*case, options.parts))
                others = [Contestant("one thread", sequential(*case))]
                others += [Contestant("mpi4py-fft", by_mpi4py_fft(*case))] if PFFT is not None else []
                seconds = measure([ours, *others], MPI.COMM_WORLD, options.repeats, options.seconds, 1)
                if MPI.COMM_WORLD.rank == 0:
                    ratios = [math.nan, *(np.median(other / seconds[0]) for other in seconds[1:])]
                    text = ", ".join(
                        f"{rival.name} {1e3 * np.median(times):.2f} ms" + (f" ({ratio:.2f})" if ratio == ratio else "")
                        for rival, times, ratio in zip([ours, *others], seconds, ratios, strict=True)
                    )
                    kind = "complex" if dtype.is_complex else "real"
                    print(f"{name} {kind} {'backward' if backward else 'forward'}: {text}", flush=True)


if __name__ == "__main__":
    main()
