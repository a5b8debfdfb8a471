"""How it is timed: in turns, so that drift of the machine hits all contestants alike."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import numpy as np
import torch
from contestants import Contestant
from mpi4py import MPI
from numpy.typing import NDArray
from torch import Tensor

FEWEST_REPEATS = 5
WARM_UP = 3  # calls before a turn of several


def check(what: str, contestant: Contestant, expected: Tensor) -> None:
    """Run once. Raises RuntimeError on all ranks unless each has exactly the expected result."""
    with contestant.setting():
        contestant.prepare()
        equal = torch.equal(contestant.run(), expected)
    wrong = [rank for rank, is_equal in enumerate(MPI.COMM_WORLD.allgather(equal)) if not is_equal]
    if wrong:
        raise RuntimeError(f"{what}: the result of {contestant.name} is not distdl's on ranks {wrong}")


def measure(
    contestants: Sequence[Contestant], comm: MPI.Comm, repeats: int, seconds: float, calls: int
) -> NDArray[np.float64]:
    """Seconds that a call took on the slowest rank, on average over the calls of a turn: [contestant, repeat].

    Stops after ``repeats`` repeats, or after ``seconds`` on the first rank's clock, but not before five repeats. The
    order of the turns is drawn anew for each repeat, so that nobody always comes after the same one.
    """
    stop = perf_counter() + seconds
    for contestant in contestants:  # memory is mapped, connections are made
        _turn(contestant, comm, calls)
    times: list[list[float]] = []
    order = random.Random(0)  # the same on all ranks
    gc.disable()
    try:
        while len(times) < repeats and comm.bcast(len(times) < FEWEST_REPEATS or perf_counter() < stop):
            turns = {
                i: _turn(contestants[i], comm, calls) for i in order.sample(range(len(contestants)), len(contestants))
            }
            times.append([turns[i] for i in range(len(contestants))])
    finally:
        gc.enable()
    slowest = np.array(times).T.copy()
    comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
    return slowest


def slowest(
    action: Callable[[], object], repeats: int, warm_up: int = 0, finish: Callable[[], object] = lambda: None
) -> float:
    """The median over repeats of the seconds on the slowest rank, up to the end of what ``finish`` waits for."""
    times = []
    for _ in range(warm_up + repeats):
        finish()
        MPI.COMM_WORLD.Barrier()
        start = perf_counter()
        action()
        finish()
        times.append(MPI.COMM_WORLD.allreduce(perf_counter() - start, MPI.MAX))
    return median(times[warm_up:])


def _turn(contestant: Contestant, comm: MPI.Comm, calls: int) -> float:
    with contestant.setting():
        contestant.prepare()
        for _ in range(min(calls - 1, WARM_UP)):
            contestant.run()
        comm.Barrier()
        start = perf_counter()
        for _ in range(calls):
            contestant.run()  # and the release of what it returns
        return (perf_counter() - start) / calls
