"""Small helpers that programs use."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import numpy as np
from mpi4py import MPI
from typing_extensions import Self

from distdl.partitions.partition import Partition


class Bunch:
    """An object with the given attributes."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class DummyContext:
    """A context that does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let exceptions pass."""


def print_sequential(comm: MPI.Comm, val: object) -> None:
    """Print every rank's value in rank order. Collective over the communicator."""
    Partition(comm).print_sequential(f"rank {comm.Get_rank()}: {val}")


def cartesian_index_c(shape: Sequence[int], index: int) -> tuple[int, ...]:
    """The place of element number ``index`` in an array of this shape whose last index is fastest."""
    return tuple(int(i) for i in np.unravel_index(index, [int(n) for n in shape], order="C"))


def cartesian_index_f(shape: Sequence[int], index: int) -> tuple[int, ...]:
    """The place of element number ``index`` in an array of this shape whose first index is fastest."""
    return tuple(int(i) for i in np.unravel_index(index, [int(n) for n in shape], order="F"))
