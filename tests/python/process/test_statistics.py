"""What is counted and what profilers show: calls, messages, bytes and peers."""

import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import distdl
import distdl.nn as dnn
from support.blocks import grid
from support.cases import CASES
from support.ranks import job, total
from support.tensors import values
from support.versions import TORCH


@pytest.fixture(autouse=True)
def _count_anew():
    distdl.reset_comm_stats()
    yield
    distdl.reset_comm_stats()


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_what_is_sent_is_received(P_world, make):
    case = make(P_world)
    x = values(case.shape, seed=job.rank).requires_grad_()
    case.operator(x).sum().backward()
    counted = distdl.comm_stats().values()
    assert total(sum(row.bytes_sent for row in counted)) == total(sum(row.bytes_received for row in counted))
    if case.operator._operator.active:
        assert [row.calls for row in counted] == [1, 1]


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_the_adjoint_sends_what_the_operator_receives(P_world, make):
    case = make(P_world)
    x = values(case.shape, seed=job.rank).requires_grad_()
    case.operator(x).sum().backward()
    if case.operator._operator.active:
        forward, adjoint = distdl.comm_stats().values()
        assert (forward.bytes_sent, forward.bytes_received) == (adjoint.bytes_received, adjoint.bytes_sent)


def test_numbers(P_world):
    P_0, P_x = grid(P_world, [1]), grid(P_world, [job.size])
    others = job.size - 1
    root = job.rank == 0
    dnn.Broadcast(P_0, P_x)(torch.ones(10) if root else distdl.zero_volume_tensor())
    halo = dnn.HaloExchange(P_x, 2)
    for _ in range(3):
        halo.wait(halo.start(torch.ones(5, dtype=torch.float64)))
    part = 700_000  # elements of a block, so that two ranks exchange blocks as well
    small, large = 12 * job.size, part * job.size
    dnn.AllSumReduce(P_x, [0])(torch.ones(small, dtype=torch.int16))
    stats_of_small = distdl.comm_stats()["AllSumReduce"]
    dnn.AllSumReduce(P_x, [0])(torch.ones(large, dtype=torch.int16))
    stats = distdl.comm_stats()
    assert list(stats) == ["AllSumReduce", "Broadcast", "HaloExchange"]
    broadcast, exchange, total_sum = stats["Broadcast"], stats["HaloExchange"], stats["AllSumReduce"]
    assert (broadcast.calls, broadcast.messages) == (1, others if root else 0)
    assert (broadcast.bytes_sent, broadcast.bytes_received) == ((40 * others, 0) if root else (0, 40))
    neighbors = (job.rank > 0) + (job.rank < job.size - 1)
    assert (exchange.calls, exchange.messages) == (3, 3 * neighbors)
    assert exchange.bytes_sent == exchange.bytes_received == 3 * neighbors * 2 * 8
    # Each rank sends the whole of a small tensor to each other rank; of a large tensor, blocks and their sums.
    assert stats_of_small.bytes_sent == stats_of_small.bytes_received == others * small * 2
    of_large = 2 * others * part * 2
    assert total_sum.bytes_sent == total_sum.bytes_received == others * small * 2 + of_large
    assert all(row.seconds_waited >= 0 for row in stats.values())
    assert job.size == 1 or sum(row.seconds_waited for row in stats.values()) > 0
    distdl.reset_comm_stats()
    assert distdl.comm_stats() == {}


def test_a_message_of_one_byte_is_counted(P_world):
    dnn.HaloExchange(grid(P_world, [job.size]), 1)(torch.ones(1, dtype=torch.uint8))
    counted = distdl.comm_stats()["HaloExchange"]
    assert counted.messages == counted.bytes_sent == (job.rank > 0) + (job.rank < job.size - 1)


@pytest.mark.parametrize("thread", [False, True])
def test_no_more_is_waited_than_time_passes(P_world, thread):
    """Also if wait() itself does the started work, and waits in it for the last rank."""
    before = distdl.progress.progress_thread()
    distdl.progress.set_progress_thread(thread)
    layer = dnn.HaloExchange(grid(P_world, [job.size]), 1, periodic=True)
    x = torch.ones(4)
    layer(x)
    distdl.reset_comm_stats()
    job.Barrier()
    began = time.perf_counter()
    with distdl.structure_check(False):
        time.sleep(0.5 if job.rank == 0 else 0)
        started = [layer.start(x) for _ in range(5)]
        for operation in started:
            layer.wait(operation)
    passed = time.perf_counter() - began
    distdl.progress.set_progress_thread(before)
    waited = distdl.comm_stats()["HaloExchange"].seconds_waited
    assert waited <= passed
    assert job.rank != 1 or waited >= 0.03


@pytest.mark.parametrize("halves", [False, True])
def test_in_the_profiler(P_world, halves, capfd):
    layer = dnn.AllGather(grid(P_world, [job.size]), [0])
    x = torch.ones(4, requires_grad=True)
    layer(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as profiled:
        y = layer.wait(layer.start(x)) if halves else layer(x)
        y.sum().backward()
    assert "skipping" not in capfd.readouterr().err  # what torch says of details that it does not take
    others = job.size - 1
    events = {event.name: event for event in profiled.events() if event.name.startswith("distdl::")}
    for name, sent, received in (("AllGather", 1, others), ("AllGather adjoint", others, 1)):
        details = events[f"distdl::{name}"].kwinputs
        assert details["bytes_sent"] == 16 * sent * (others if sent == 1 and others else 1) * (others > 0)
        assert details["bytes_received"] == 16 * received * (others if received == 1 and others else 1) * (others > 0)
        peers = details["peers"].split() if TORCH < (2, 10) else list(details["peers"])
        assert peers == [str(rank) for rank in range(job.size) if rank != job.rank]
