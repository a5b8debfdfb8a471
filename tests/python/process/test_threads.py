"""Layers in several Python threads: each on a communicator of its own, and what happens on the same one."""

import random
import threading
import time

import pytest
import torch
from mpi4py import MPI

import distdl
import distdl.nn as dnn
from support import jobs
from support.blocks import assemble, block_of, grid
from support.ranks import job
from support.tensors import values

STEPS = 10


def in_threads(work, count):
    """Run work(0), work(1), ... each in a thread; what they raised, by thread."""
    raised = [None] * count

    def run(i):
        try:
            work(i)
        except Exception as error:
            raised[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    random.Random(job.rank).shuffle(threads)  # in another order on each rank
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return raised


@pytest.fixture
def comms():
    """A communicator for each of four threads."""
    made = [MPI.COMM_WORLD.Dup() for _ in range(4)]
    yield made
    for comm in made:
        comm.Free()


def step(P, i, in_halves):
    """A forward and a backward pass of primitives; the results are those of thread i."""
    ranks = range(P.size)
    time.sleep(random.Random(f"{i} {job.rank}").uniform(0, 0.002))
    x = torch.full((3,), float(i + 1), requires_grad=True)
    total = dnn.AllSumReduce(P, [0])
    y = total.wait(total.start(x)) if in_halves else total(x)
    y.backward(torch.full((3,), float(job.rank + 1)))
    assert torch.equal(y, torch.full((3,), float((i + 1) * P.size)))
    assert torch.equal(x.grad, torch.full((3,), float(sum(rank + 1 for rank in ranks))))
    whole = values((5, 4), seed=i)
    P_x, P_y = grid(P, [P.size, 1]), grid(P, [1, P.size], reversed(ranks))
    moved = dnn.Repartition(P_x, P_y)
    block = block_of(whole, P_x)
    z = moved.wait(moved.start(block)) if in_halves else moved(block)
    assert torch.equal(z, block_of(whole, P_y))


@pytest.mark.parametrize("in_halves", [False, True], ids=["calls", "start and wait"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_on_a_communicator_of_its_own(comms, count, in_halves):
    def work(i):
        for _ in range(STEPS):
            step(distdl.Partition(comms[i]), i, in_halves)

    assert in_threads(work, count) == [None] * count


def test_models_in_threads(comms):
    """Layers with parameters: what they compute is what the sequential ones do, in each thread."""
    x = values((2, 4, 6))
    results = [None] * 3

    def work(i):
        P = distdl.Partition(comms[i])
        P_x = grid(P, [1, 1, P.size])
        twin = torch.nn.Conv1d(4, 2, 3, padding=1, dtype=torch.double)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.copy_(values(parameter.shape, seed=i))
        layer = dnn.DistributedConv1d(P_x, 4, 2, 3, padding=1, dtype=torch.double)
        distdl.load_sequential(layer, twin.state_dict())
        y = layer(block_of(x, P_x))
        y.sum().backward()
        twin(x).sum().backward()
        results[i] = (y.detach(), twin(x).detach())
        if job.rank == 0:
            assert torch.equal(layer.weight.grad, twin.weight.grad)

    assert in_threads(work, 3) == [None] * 3
    P_x = grid(distdl.Partition(MPI.COMM_WORLD), [1, 1, job.size])
    for y, expected in results:
        assert torch.equal(assemble(y, P_x, expected.shape), expected)


def test_other_orders_on_the_same_communicator_raise_on_all_ranks(P_world):
    """Two threads call two layers; on rank 0 the first comes first, on all others the second."""
    layers = [dnn.AllSumReduce(P_world, [0]) for _ in range(2)]

    def work(i):
        time.sleep(0.0 if (i == 0) == (job.rank == 0) else 0.5)
        assert torch.equal(layers[i](torch.ones(2)), torch.full((2,), float(job.size)))

    raised = job.allgather([type(error) for error in in_threads(work, 2)])
    assert raised == [[RuntimeError] * 2 if job.size > 1 else [type(None)] * 2] * job.size
    assert torch.equal(layers[0](torch.ones(2)), torch.full((2,), float(job.size)))


def test_one_after_the_other_on_the_same_communicator(P_world):
    """Threads that take turns in the same order on all ranks."""
    layer, done = dnn.AllSumReduce(P_world, [0]), [threading.Event() for _ in range(4)]

    def work(i):
        if i > 0:
            done[i - 1].wait(30)
        y = layer.wait(layer.start(torch.full((2,), float(i))))
        assert torch.equal(y, torch.full((2,), float(i * job.size)))
        done[i].set()

    assert in_threads(work, 4) == [None] * 4


def test_a_backward_pass_in_another_thread(P_world):
    """As torch runs those of devices. It keeps the order of the thread that made the graph, also where that has started
    something else."""
    layer, other = dnn.AllSumReduce(P_world, [0]), dnn.AllSumReduce(P_world, [0])
    for i in range(20):
        x = torch.ones(1 << 12, requires_grad=True)
        y = layer(x)
        started = other.start(torch.full((1 << 14,), float(i)))
        thread = threading.Thread(target=y.backward, args=(torch.full_like(y, float(i)),))
        thread.start()
        thread.join()
        assert torch.equal(x.grad, torch.full_like(x, float(i * job.size)))
        assert torch.equal(other.wait(started), torch.full((1 << 14,), float(i * job.size)))


@pytest.mark.turns(3)
@pytest.mark.ranks(1)  # the program is a job of its own
def test_less_than_thread_multiple():
    """Then the main thread works, also in two halves, and others raise."""
    program = """
        import mpi4py
        mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI
        import threading, torch, distdl
        assert MPI.Query_thread() == MPI.THREAD_SERIALIZED
        layer = distdl.nn.AllSumReduce(distdl.Partition(), [0])
        assert layer.wait(layer.start(torch.ones(1))).item() == 2
        raised = []
        def call():
            try:
                layer(torch.ones(1))
            except RuntimeError as error:
                raised.append(str(error))
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert "less than MPI_THREAD_MULTIPLE" in raised[0], raised
        assert layer(torch.ones(1)).item() == 2
        """
    assert jobs.ends(program, by=()) == (0, "")
