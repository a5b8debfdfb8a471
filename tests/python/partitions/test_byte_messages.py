"""Messages of bytes between ranks: whatever their sizes, counted, and waited for as operators wait."""

import threading
import time

import pytest
import torch

import distdl
from support.jobs import ends
from support.ranks import job, together

SIZES = (1, 100, 8 << 10, (8 << 10) + 1, 1 << 20)  # the first three are sent as copies


def content(source, target, number, size):
    return (torch.arange(size) * 7 + 31 * source + 17 * target + number).to(torch.uint8)


def exchange(grid, call, sizes):
    """From each rank to each other one, and to itself; many are under way at once."""
    messages = grid.byte_messages(call)
    arriving = [
        (rank, i, messages.receive(rank, size)) for rank in reversed(grid.ranks) for i, size in enumerate(sizes)
    ]
    for i, size in enumerate(sizes):
        for rank in grid.ranks:
            messages.send(rank, content(grid.me, rank, i, size))
    messages.wait()
    return all(torch.equal(x, content(rank, grid.me, i, len(x))) for rank, i, x in arriving)


def test_what_is_sent_arrives(P_world):
    assert exchange(P_world.grid, "exchange", SIZES)


@pytest.mark.mpi(min_size=2)
def test_ranks_in_another_order(P_world):
    """Ranks are named as the program counts them."""
    some = P_world.create_partition_inclusive(range(job.size - 1, 0, -1))
    assert not some.active or exchange(some.grid, "exchange", SIZES)


def test_calls_do_not_mix(P_world):
    """Messages of two calls that are under way at once have tags of their own."""
    first, second = (P_world.grid.byte_messages("exchange") for _ in range(2))
    in_first, in_second = (messages.receive(job.rank, 5) for messages in (first, second))
    second.send(job.rank, torch.full((5,), 2, dtype=torch.uint8))
    first.send(job.rank, torch.full((5,), 1, dtype=torch.uint8))
    first.wait()
    second.wait()
    assert in_first.tolist() == [1] * 5
    assert in_second.tolist() == [2] * 5


def test_they_are_counted(P_world):
    distdl.reset_comm_stats()
    exchange(P_world.grid, "exchange", SIZES)
    counted = distdl.comm_stats()["exchange"]
    assert (counted.calls, counted.messages) == (1, job.size * len(SIZES))
    assert counted.bytes_sent == counted.bytes_received == job.size * sum(SIZES)
    distdl.reset_comm_stats()


@pytest.mark.mpi(min_size=2)
def test_other_threads_run_meanwhile(P_world):
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    messages = P_world.grid.byte_messages("exchange")
    if job.rank == 0:
        messages.receive(1, 1 << 20)
    elif job.rank == 1:
        time.sleep(0.5)
        messages.send(0, torch.zeros(1 << 20, dtype=torch.uint8))
    start = time.perf_counter()
    messages.wait()
    stop = time.perf_counter()
    done.set()
    thread.join()
    within = together(sum(start < at < stop for at in ticks))
    assert within[0] >= 5


PROGRAM = """
import time, torch
from mpi4py import MPI
import distdl

P = distdl.Partition()
messages = P.grid.byte_messages("save")
if P.rank == 0:
    {first}
else:
    time.sleep(3)
    messages.send(0, torch.ones(100_000, dtype=torch.uint8))
messages.wait()
print("done", flush=True)
"""


@pytest.mark.ranks(1)
def test_the_watchdog_names_the_call():
    program = PROGRAM.format(first="messages.receive(1, 100_000)")
    status, said = ends(program, DISTDL_WATCHDOG="1")
    assert status == 0, said
    assert "waits in save: not all ranks have come after 1 s; rank 0: waits in save, at" in said, said


@pytest.mark.ranks(1)
def test_an_error_of_mpi():
    """A rank that does not exist: the error is final, and the other rank, which waits, is ended."""
    first = """
    for call in (lambda: messages.receive(9, 5), lambda: distdl.save("nowhere", torch.nn.Linear(2, 2))):
        try: call()
        except distdl.MPIError as error: print(error.error_class == MPI.ERR_RANK, flush=True)
    raise SystemExit"""
    status, said = ends(PROGRAM.format(first=first.strip()), DISTDL_WATCHDOG="0")
    assert status != 0
    assert said.count("True") == 2, said
    assert "ends the job, in which others may wait for it: MPI_Irecv: " in said, said
