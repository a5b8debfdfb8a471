"""MPI's objects, memory and Python's objects stay as many, however often something is made, used, dropped, interrupted.

MPI's objects are counted below the library, by tests/pmpi/observer.cpp, which has to be preloaded; tests/run.sh does.
DISTDL_LEAKS is the part of the full numbers (10,000 layers, 100,000 passes) to go through, 1 for all of them. This has
no name that pytest looks for.
"""

import ctypes
import gc
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from distdl import _core
from support.blocks import grid
from support.cases import CASES
from support.growth import malloc_bytes, process
from support.ranks import job

PART = float(os.environ.get("DISTDL_LEAKS", "0.03"))
KINDS = ("communicators", "groups", "infos", "requests", "types")
# What may come and go by itself, in bytes and, for Python, objects. One leak in each of a thousand repetitions is more.
LIMITS = {"small": 1 << 16, "large": 4 << 20, "resident": 4 << 20, "Python": 300}


@pytest.fixture(scope="module", autouse=True)
def _observed():
    assert hasattr(process, "observer_alive"), "tests/pmpi/observer.cpp is not preloaded; tests/run.sh shows how"


def mpi_objects():
    """How many of MPI's objects this process has."""
    return {kind: process.observer_alive(kind.encode()) for kind in KINDS}


def memory():
    """Bytes of small and of large blocks of memory, bytes that are resident, and Python's objects."""
    gc.collect()
    distdl.memory.empty_pool()
    small, mapped = malloc_bytes()
    large = mapped + distdl.memory.pool_used()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "small": small,
        "large": large,
        "resident": resident,
        "Python": sys.getallocatedblocks(),
    }


def all_that_is_alive():
    """With nothing under way that was started."""
    _core.finish_all()
    return mpi_objects(), memory()


def stays_constant(full, body, capsys):
    """Repeats a body, after a fifth of the repetitions and some more have warmed it up; counts before and after.

    MPICH's own pools grow by 1 MiB now and then, where a rank is far behind. A leak grows each time, so that memory is
    looked at again, twice at most.
    """
    times = int(full * PART)
    for i in range(times // 5 + 300):
        body(i)
    for _ in range(3):
        everyones, grown = growth(times, body)
        if job.rank == 0:
            with capsys.disabled():
                print(f"\n  {times} times: {everyones[0][1]}, grown by {grown}")
        # The same judgement on all ranks.
        assert all(before == after for before, after, _ in everyones), everyones
        if all(grown[kind] < LIMITS[kind] for kind in grown):
            return
    raise AssertionError(f"grown by {grown}")


def growth(times, body):
    """Each rank's MPI objects before and after it repeats a body, and the growth of its memory."""
    objects, before = all_that_is_alive()
    for i in range(times):
        body(i)
    objects_after, after = all_that_is_alive()
    everyones = job.allgather((objects, objects_after, {kind: after[kind] - before[kind] for kind in before}))
    return everyones, {kind: max(changes[kind] for _, _, changes in everyones) for kind in before}


def test_the_observer_sees_whatever_the_extension_calls():
    """So there is nothing that it makes unseen."""
    extension = importlib.util.find_spec("distdl._core").origin
    symbols = subprocess.run(["nm", "-D", "--undefined-only", extension], capture_output=True, text=True, check=True)
    called = re.findall(r" U (MPI_\w+)$", symbols.stdout, re.MULTILINE)
    assert called
    observer = ctypes.CDLL(os.environ["LD_PRELOAD"])
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", observer._name], capture_output=True, text=True, check=True
    )
    assert set(called) <= set(re.findall(r" T (MPI_\w+)$", exported.stdout, re.MULTILINE))


def test_ten_thousand_layers(P_world):
    """All alive at the same time."""
    P_x, P_y = grid(P_world, [1]), grid(P_world, [job.size])
    x = torch.ones(2) if P_x.active else distdl.zero_volume_tensor()
    dnn.Broadcast(P_x, P_y)(x)
    objects = mpi_objects()
    layers = [dnn.Broadcast(P_x, P_y) for _ in range(int(10_000 * PART))]
    for layer in layers:
        assert torch.equal(layer(x), torch.ones(2))
    assert mpi_objects() == objects


def test_passes(P_world, capsys):
    """Forward and backward, of every operator in turn, at once and in halves."""
    operators = [make(P_world) for make in CASES.values()]
    inputs = [torch.ones(case.shape, requires_grad=True) for case in operators]

    def forward_and_backward(i):
        operator, x = operators[i % len(operators)].operator, inputs[i % len(operators)]
        y = operator(x) if i % 2 else operator.wait(operator.start(x))
        y.sum().backward()
        x.grad = None

    stays_constant(100_000, forward_and_backward, capsys)


def test_partitions_and_primitives_made_and_dropped(P_world, capsys):
    x = torch.ones(2, 2, requires_grad=True)

    def make_and_drop(_):
        P_x = P_world.create_cartesian_topology_partition([1, job.size])
        P_y = P_world.create_partition_inclusive([0]).create_cartesian_topology_partition([1, 1])
        P_x.create_cartesian_subtopology_partition([False, True]).allgather_data(1)
        y = distdl.functional.repartition(dnn.AllSumReduce(P_x, [1])(x), P_x, P_y)
        (y.sum() + distdl.functional.halo_exchange(x, P_x, 1).sum()).backward()
        assert P_x == P_world.create_partition_union(P_x).create_cartesian_topology_partition([1, job.size])

    stays_constant(10_000, make_and_drop, capsys)


def test_layers_made_and_dropped(P_world, capsys):
    P_x = grid(P_world, [1, 1, 1, job.size])
    P_flat, P_one = grid(P_world, [1, job.size]), grid(P_world, [1, 1])
    images, labels = torch.rand(2, 2, 4, 4), torch.zeros(2, dtype=torch.int64)

    def make_and_drop(_):
        network = torch.nn.Sequential(
            dnn.DistributedConv2d(P_x, 2, 2, 3, padding=1),
            dnn.DistributedMaxPool2d(P_x, 2),
            dnn.DistributedUpsample(P_x, scale_factor=2),
        )
        linear = dnn.DistributedLinear(P_flat, P_one, P_flat, 3 * job.size, 4)
        scores = linear(network(images).flatten()[:3].expand(2, 3))
        loss = dnn.DistributedCrossEntropyLoss(P_one)
        loss(scores, labels if P_one.active else labels[:0]).backward()

    stays_constant(2_000, make_and_drop, capsys)


def test_layers_of_transformers_made_and_dropped(P_world, capsys):
    P_x, P_tokens = grid(P_world, [1, job.size, 1]), grid(P_world, [1, job.size])
    tokens = torch.zeros(2, 3, dtype=torch.int64)

    def make_and_drop(_):
        network = torch.nn.Sequential(
            dnn.DistributedEmbedding(P_tokens, 5, 4),
            dnn.DistributedLayerNorm(P_x, 4),
            dnn.DistributedTransformerEncoderLayer(P_x, 4, 2, 4, batch_first=True),
            dnn.DistributedDropout(P_x, 0.1),
            dnn.DistributedFlatten(P_x, 1),
            dnn.Local(P_tokens, torch.nn.Tanh()),
            dnn.DistributedSoftmax(P_tokens, 1),
        )
        network(tokens).sum().backward()

    stays_constant(1_000, make_and_drop, capsys)


def test_user_communicators_made_and_freed(capsys):
    """What is cached on a communicator goes with it."""

    def make_and_free(_):
        comm = MPI.COMM_WORLD.Dup()
        P = distdl.Partition(comm)
        assert dnn.AllSumReduce(P, [0])(torch.ones(1)) == job.size
        assert P.allreduce_data(1) == job.size
        assert P.create_cartesian_topology_partition([job.size, 1]).comm.size == job.size
        comm.Free()

    stays_constant(10_000, make_and_free, capsys)


def interruptions(P_world):
    """Exceptions on all ranks, in the middle of something."""
    P_x = grid(P_world, [job.size])
    first, second = dnn.AllSumReduce(P_x, [0]), dnn.HaloExchange(P_x, 1)
    x = torch.ones(3, requires_grad=True)

    def interrupt(*_):
        raise KeyError("in the middle")

    def in_a_forward_pass():
        first(x)
        second.start(x)  # and nobody waits
        interrupt()

    def wrong_input():
        second(first(x).to_sparse() if job.rank == 0 else first(x))

    def in_a_backward_pass():
        y = first(x)
        y.register_hook(interrupt)
        second(y).sum().backward()

    def between_the_halves_of_a_backward_pass():
        y = first.wait(first.start(x))
        y.grad_fn.register_hook(interrupt)
        y.sum().backward()

    return (in_a_forward_pass, wrong_input, in_a_backward_pass, between_the_halves_of_a_backward_pass)


@pytest.mark.parametrize("which", range(4))
def test_interruptions(P_world, capsys, which):
    interruption = interruptions(P_world)[which]

    def interrupted(_):
        with pytest.raises((KeyError, TypeError)):
            interruption()
        while _core.take_deferred_error():
            pass

    stays_constant(10_000, interrupted, capsys)
    assert dnn.AllSumReduce(P_world, [0])(torch.ones(1)) == job.size
