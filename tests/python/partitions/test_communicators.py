"""Communicators are private, cached and bounded; layers take bare mpi4py communicators as well."""

import gc
import threading
import time

import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from distdl import _core
from support.blocks import assemble, block_of, grid
from support.ranks import job
from support.tensors import values


@pytest.mark.turns(3)
@pytest.mark.ranks(2)
def test_ten_thousand_layers_on_the_same_partitions(P_world):
    P_x, P_y = grid(P_world, [1]), grid(P_world, [job.size])
    layers = [dnn.Broadcast(P_x, P_y)]
    before = _core.live_communicators()
    x = torch.ones(2) if P_x.active else distdl.zero_volume_tensor()
    layers.extend(dnn.Broadcast(P_x, P_y) if i % 2 else dnn.SumReduce(P_y, P_x) for i in range(10_000))
    assert torch.equal(layers[-1](x), torch.ones(2))
    assert _core.live_communicators() == before


@pytest.mark.ranks(3)
def test_making_and_dropping_for_ever(P_world):
    """Partitions, layers, forward and backward passes: more of them than there are communicators in MPICH."""
    counts = []
    for _ in range(3):
        for _ in range(200):
            P = P_world.create_cartesian_topology_partition([1, job.size])
            layer = dnn.AllSumReduce(P, [1])
            x = torch.ones(2, requires_grad=True)
            layer(x).sum().backward()
        gc.collect()
        counts.append(_core.live_communicators())
    assert len(set(counts)) == 1


@pytest.mark.turns(3)
@pytest.mark.ranks(2)
def test_user_communicators_made_and_freed_for_ever():
    """What is cached on a communicator goes with it. MPICH has about two thousand."""
    before = _core.live_communicators()
    for _ in range(1_500):
        comm = MPI.COMM_WORLD.Dup()
        y = dnn.AllSumReduce(distdl.Partition(comm), [0])(torch.ones(1))
        comm.Free()
    assert y == job.size
    assert _core.live_communicators() == before


def test_user_messages_do_not_meet_ours(P_world):
    """A receive from anyone with any tag on the user's communicator stays pending through our traffic."""
    comm = MPI.COMM_WORLD
    buffer = torch.zeros(1)
    request = comm.Irecv(buffer.numpy(), MPI.ANY_SOURCE, MPI.ANY_TAG)
    P = grid(P_world, [job.size, 1])
    whole = values((4, 3))
    y = dnn.Repartition(P, grid(P_world, [1, job.size]))(block_of(whole, P))
    assert torch.equal(assemble(y, grid(P_world, [1, job.size]), whole.shape), whole)
    early = request.Test()
    job.Barrier()
    comm.Send(torch.full((1,), 5.0).numpy(), (job.rank + 1) % job.size, 3)
    request.Wait()
    assert not early
    assert buffer.item() == 5.0


def test_bare_communicators(P_world):
    """Cartcomm keeps its shape, Intracomm is one-dimensional, COMM_NULL is inactive: ranks learn of each other."""
    everyone = MPI.COMM_WORLD.Create_cart([1, job.size])
    last = MPI.COMM_WORLD.Split(0 if job.rank == job.size - 1 else MPI.UNDEFINED)
    x = values((2, 3)) if job.rank == job.size - 1 else distdl.zero_volume_tensor()
    x.requires_grad_()
    y = dnn.Broadcast(last, everyone)(x)
    assert torch.equal(y, values((2, 3)))
    y.backward(torch.full_like(y, job.rank + 1.0))
    if job.rank == job.size - 1:
        assert torch.equal(x.grad, torch.full_like(x, sum(range(1, job.size + 1))))
    total = dnn.SumReduce(everyone, last)(torch.ones(2))
    assert total.tolist() == ([job.size] * 2 if job.rank == job.size - 1 else [[], []])
    single = dnn.AllGather(everyone, axes_all_gather=[1])(torch.full((1, 1), float(job.rank)))
    assert single.tolist() == [list(map(float, range(job.size)))]
    everyone.Free()


def test_a_partition_and_a_bare_communicator_mix(P_world):
    grid_comm = MPI.COMM_WORLD.Create_cart([job.size, 1])
    first = grid(P_world, [1, 1])
    whole = values((5, 2))
    y = dnn.Repartition(first, grid_comm)(whole if first.active else distdl.zero_volume_tensor())
    assert torch.equal(assemble(y, distdl.Partition(grid_comm), whole.shape), whole)
    grid_comm.Free()


def test_one_bare_communicator_is_nobody_elses_business():
    """Ranks outside of it pass through."""
    comm = MPI.COMM_WORLD.Split(0 if job.rank == 0 else MPI.UNDEFINED)
    y = dnn.AllSumReduce(comm, [0])(torch.ones(3) if job.rank == 0 else distdl.zero_volume_tensor(4))
    assert tuple(y.shape) == ((3,) if job.rank == 0 else (4, 0))
    pool = dnn.DistributedMaxPool1d(comm if job.rank else comm.Create_cart([1, 1, 1]), 2)
    z = pool(torch.arange(6.0).view(1, 1, 6) if job.rank == 0 else distdl.zero_volume_tensor(4))
    assert z.numel() == (3 if job.rank == 0 else 0)


def test_replicas_construct_their_own(P_world):
    """Ranks of different halves have different layers, as long as each half agrees with itself."""
    if job.size < 2:
        return
    evens, odds = list(range(0, job.size, 2)), list(range(1, job.size, 2))
    P_even, P_odd = P_world.create_partition_inclusive(evens), P_world.create_partition_inclusive(odds)
    P_half = P_even if P_even.active else P_odd
    y = dnn.AllSumReduce(P_half, [0])(torch.ones(1))
    assert y.item() == P_half.size


def test_a_communicator_of_their_own(P_world):
    """A part of the ranks runs a program of its own on a communicator of its own."""
    comm = MPI.COMM_WORLD.Split(job.rank % 2)
    P = distdl.Partition(comm)
    for _ in range(job.rank % 2 + 1):
        y = dnn.AllSumReduce(P, [0])(torch.ones(1))
        assert y.item() == comm.size
    comm.Free()


WAITING = {
    "constructing": lambda P, layer: lambda: dnn.Broadcast(P, P),
    "small data": lambda P, layer: lambda: P.allgather_data(1),
    "forward": lambda P, layer: lambda: layer(torch.ones(2)),
    "backward": lambda P, layer: layer(torch.ones(2, requires_grad=True)).sum().backward,
}


@pytest.mark.parametrize("prepare", WAITING.values(), ids=WAITING)
def test_other_threads_run_while_a_rank_waits(P_world, prepare):
    """The last rank comes late; on the others, Python's lock is free in the meantime."""
    if job.size == 1:
        return
    wait = prepare(P_world, dnn.AllSumReduce(P_world, [0]))
    ticks, done = 0, threading.Event()

    def count():
        nonlocal ticks
        while not done.wait(0.01):
            ticks += 1

    job.Barrier()
    thread = threading.Thread(target=count)
    if job.rank == job.size - 1:
        time.sleep(0.3)
    else:
        thread.start()
    wait()
    done.set()
    if job.rank != job.size - 1:
        thread.join()
    counted = job.allgather(ticks)
    assert min(counted[:-1]) >= 5, counted
