"""Messages of bytes between the ranks of a grid, on a communicator of their own."""

from __future__ import annotations

from typing import Self

import torch
from mpi4py import MPI

from distdl import _core
from distdl.partitions.grid import Grid

_SENT_AT_ONCE = 4  # messages that are kept until they have arrived


class Arriving:
    """A message that arrives in a tensor of bytes."""

    def __init__(self, comm: MPI.Comm, source: int, nbytes: int) -> None:
        self._bytes = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        self._request = comm.Irecv(self._bytes.numpy(), source)

    def wait(self) -> torch.Tensor:
        """The bytes, after they have arrived."""
        self._request.Wait()
        return self._bytes


class ByteMessages:
    """Messages of bytes between ranks. Entering the context is collective over the grid; leaving it is, too.

    Args:
        operation: its name, for the watchdog.
    """

    def __init__(self, operation: str, grid: Grid) -> None:
        self._operation, self._grid = operation, grid
        self._number = {rank: number for number, rank in enumerate(grid.ranks)}
        self._under_way: list[tuple[MPI.Request, torch.Tensor]] = []

    def __enter__(self) -> Self:
        self._comm = self._grid.host_exchange().view([]).Dup()
        return self

    def __exit__(self, *error: object) -> None:
        self._comm.Free()

    def receive(self, rank: int, nbytes: int) -> Arriving:
        """Begin to receive a message."""
        return Arriving(self._comm, self._number[rank], nbytes)

    def send(self, rank: int, message: torch.Tensor) -> None:
        """Begin to send bytes, which must not change until :meth:`wait_for_sends`."""
        if len(self._under_way) == _SENT_AT_ONCE:
            self._under_way.pop(0)[0].Wait()
        self._under_way.append((self._comm.Isend(message.numpy(), self._number[rank]), message))

    def waiting(self) -> _core.Waiting:
        """A context in which the watchdog sees that this rank waits."""
        return _core.Waiting(self._operation)

    def wait_for_sends(self) -> None:
        """Wait until all messages of this rank have left it."""
        for request, _ in self._under_way:
            request.Wait()
        self._under_way.clear()
