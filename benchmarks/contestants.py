"""Who is timed: distdl, MPI by hand, and torch.distributed with gloo, each doing the same to the same tensors."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

import distdl

ROOT = 0
TRIALS = 7  # of each way to copy
Region = tuple[Any, ...]  # slices, after an ellipsis perhaps
NOTHING: Region = (slice(0, 0),)


@dataclass(frozen=True)
class Contestant:
    """One way to do an operation. Only ``run`` is timed; ``setting`` is entered and ``prepare`` called before it."""

    name: str
    run: Callable[[], Tensor]
    prepare: Callable[[], object] = lambda: None
    setting: Callable[[], AbstractContextManager[object]] = nullcontext


def distdl_forward(layer: Callable[[Tensor], Tensor], x: Tensor, checked: bool) -> Contestant:
    """The layer as an evaluation loop calls it."""

    @contextmanager
    def setting() -> Iterator[None]:
        with torch.no_grad(), distdl.structure_check(checked):
            yield

    return Contestant("distdl", lambda: layer(x), setting=setting)


def distdl_adjoint(y: Tensor, x: Tensor, gradient: Tensor, checked: bool) -> Contestant:
    """The backward pass of one layer, autograd's own cost included."""

    def run() -> Tensor:
        return torch.autograd.grad(y, x, gradient, retain_graph=True)[0]

    return Contestant("distdl", run, setting=lambda: distdl.structure_check(checked))


@dataclass(frozen=True)
class Overlaps:
    """What a rank of two keeps of its input x, sends of it, and receives in its output y."""

    kept: tuple[Region, Region]  # in x, in y
    sent: Region  # in x
    received: Region  # in y
    adds: bool = False  # what arrives is added to what was kept

    def adjoint(self, adds: bool = False) -> Overlaps:
        """The way back."""
        return Overlaps(self.kept[::-1], sent=self.received, received=self.sent, adds=adds)


def fastest_copy(source: Tensor, target: Tensor) -> Callable[[], object]:
    """A copy by torch or by NumPy, which copies rows as bytes: whichever takes less for these two."""
    if not source.numel():  # zero volume, perhaps in other dimensions
        return lambda: target
    source = source.detach()
    ways = partial(target.copy_, source), partial(np.copyto, target.numpy(), source.numpy())

    def seconds(copy: Callable[[], object]) -> float:
        start = perf_counter()
        copy()
        return perf_counter() - start

    return min(ways, key=lambda way: min(seconds(way) for _ in range(TRIALS)))


class Raw(ABC):
    """The operations by hand. Each takes the input x, and y for the result, whose memory is mapped already.

    The result has y's shape. It is y, or x where the operation leaves a rank's tensor as it is.
    """

    name: str

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.is_root = comm.rank == ROOT
        self.peer = 1 - comm.rank

    @abstractmethod
    def broadcast(self, x: Tensor, y: Tensor) -> Contestant:
        """The root's x for all."""

    @abstractmethod
    def reduce(self, x: Tensor, y: Tensor) -> Contestant:
        """The sum of all x for the root."""

    @abstractmethod
    def all_reduce(self, x: Tensor, y: Tensor) -> Contestant:
        """The sum of all x for all."""

    @abstractmethod
    def all_gather(self, x: Tensor, y: Tensor) -> Contestant:
        """One x after the other for all."""

    @abstractmethod
    def reduce_scatter(self, x: Tensor, y: Tensor) -> Contestant:
        """Of the sum of all x one block each."""

    @abstractmethod
    def messages(self, outgoing: Tensor, incoming: Tensor) -> Callable[[], Callable[[], object]]:
        """Starts both messages with the other rank; what it returns waits for them."""

    def exchange(self, overlaps: Overlaps) -> Callable[[Tensor, Tensor], Contestant]:
        """Regions of x to where they belong in y. Contiguous ones travel in place, others through a buffer."""

        def between(x: Tensor, y: Tensor) -> Contestant:
            kept_from, kept_to = x[overlaps.kept[0]], y[overlaps.kept[1]]
            leaving, arriving = x[overlaps.sent], y[overlaps.received]
            outgoing = leaving.contiguous()
            in_place = arriving.is_contiguous() and not overlaps.adds
            incoming = arriving if in_place else torch.zeros(arriving.shape)
            start = self.messages(outgoing, incoming)
            pack, keep = fastest_copy(leaving, outgoing), fastest_copy(kept_from, kept_to)
            deliver = partial(arriving.add_, incoming) if overlaps.adds else fastest_copy(incoming, arriving)

            def run() -> Tensor:
                if outgoing is not leaving:
                    pack()
                wait = start()
                if kept_to.numel() > 0:
                    keep()
                wait()
                if not in_place:
                    deliver()
                return y

            return Contestant(self.name, run)

        return between

    def _contestant(
        self, result: Tensor, call: Callable[[], object], prepare: Callable[[], object] = lambda: None
    ) -> Contestant:
        def run() -> Tensor:
            call()
            return result

        return Contestant(self.name, run, prepare)


class MPIByHand(Raw):
    """mpi4py's calls on buffers."""

    name = "MPI"

    def broadcast(self, x: Tensor, y: Tensor) -> Contestant:
        tensor = x if self.is_root else y
        buffer = tensor.numpy()
        return self._contestant(tensor, lambda: self.comm.Bcast(buffer, ROOT))

    def reduce(self, x: Tensor, y: Tensor) -> Contestant:
        source, target = x.numpy(), y.numpy() if self.is_root else None
        return self._contestant(y, lambda: self.comm.Reduce(source, target, MPI.SUM, ROOT))

    def all_reduce(self, x: Tensor, y: Tensor) -> Contestant:
        source, target = x.numpy(), y.numpy()
        return self._contestant(y, lambda: self.comm.Allreduce(source, target))

    def all_gather(self, x: Tensor, y: Tensor) -> Contestant:
        source, target = x.numpy(), y.numpy()
        return self._contestant(y, lambda: self.comm.Allgather(source, target))

    def reduce_scatter(self, x: Tensor, y: Tensor) -> Contestant:
        source, target = x.numpy(), y.numpy()
        return self._contestant(y, lambda: self.comm.Reduce_scatter_block(source, target))

    def messages(self, outgoing: Tensor, incoming: Tensor) -> Callable[[], Callable[[], object]]:
        source, target = outgoing.numpy(), incoming.numpy()

        def start() -> Callable[[], object]:
            requests = [self.comm.Irecv(target, self.peer)] if target.size else []
            if source.size:
                requests.append(self.comm.Isend(source, self.peer))
            return lambda: MPI.Request.Waitall(requests)

        return start


class Gloo(Raw):
    """torch.distributed. It sums in place, so that each turn begins with a copy of the input, which is not timed."""

    name = "gloo"

    def broadcast(self, x: Tensor, y: Tensor) -> Contestant:
        tensor = x if self.is_root else y
        return self._contestant(tensor, lambda: dist.broadcast(tensor, ROOT))

    def reduce(self, x: Tensor, y: Tensor) -> Contestant:
        tensor = y if self.is_root else torch.empty_like(x)
        return self._contestant(y, lambda: dist.reduce(tensor, ROOT), lambda: tensor.copy_(x))

    def all_reduce(self, x: Tensor, y: Tensor) -> Contestant:
        return self._contestant(y, lambda: dist.all_reduce(y), lambda: y.copy_(x))

    def all_gather(self, x: Tensor, y: Tensor) -> Contestant:
        return self._contestant(y, lambda: dist.all_gather_single(y, x))

    def reduce_scatter(self, x: Tensor, y: Tensor) -> Contestant:
        return self._contestant(y, lambda: dist.reduce_scatter_single(y, x))

    def messages(self, outgoing: Tensor, incoming: Tensor) -> Callable[[], Callable[[], object]]:
        def start() -> Callable[[], object]:
            works = [dist.irecv(incoming, self.peer)] if incoming.numel() else []
            if outgoing.numel():
                works.append(dist.isend(outgoing, self.peer))
            return lambda: [work.wait() for work in works]

        return start


class Clone:
    """torch.clone, where everything stays where it is."""

    def keep(self, x: Tensor, y: Tensor) -> Contestant:
        """A copy of x."""
        return Contestant("clone", x.clone)


@contextmanager
def gloo(comm: MPI.Comm) -> Iterator[Gloo]:
    """A process group of the ranks of an MPI communicator, on one machine."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(comm.bcast(folder, ROOT)) / "store"), comm.size)
        dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
        yield Gloo(comm)
        dist.destroy_process_group()
        del store  # it uses the folder, which is everybody's, until the end
        comm.Barrier()
