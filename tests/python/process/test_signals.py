"""Signals that programs handle: ranks stop at the same step."""

import textwrap

import pytest

from support import jobs

pytestmark = [pytest.mark.ranks(1), pytest.mark.turns(3)]  # the programs are jobs of their own

BEGINNING = """
import os, signal, sys, time, torch
from mpi4py import MPI
import distdl

P = distdl.Partition(MPI.COMM_WORLD)

def say(text):  # a line in one piece: ranks write at the same time
    os.write(1, (text + "\\n").encode())

def ask(number):
    if P.rank == P.size - 1:
        os.kill(os.getpid(), number)
"""


def prints(said):
    """What the ranks printed, sorted."""
    return sorted(line for line in said.splitlines() if line)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_signal_for_one_rank_stops_all_at_the_same_step(number, ranks):
    program = f"""
        layer = distdl.nn.AllSumReduce(P, [0])
        for step in range(10):
            layer(torch.ones(3))
            if step == 4:
                ask(signal.{number})
            if distdl.stop_requested():
                break
        total = layer(torch.ones(1)).item()
        say(f"rank {{P.rank}} stopped at {{step}}: {{total}}, {{distdl.stop_requested()}}")
        """
    status, said = jobs.ends(BEGINNING + textwrap.dedent(program), ranks)
    assert status == 0, said
    assert prints(said) == [f"rank {rank} stopped at 4: {float(ranks)}, True" for rank in range(ranks)]


def test_the_ranks_of_a_partition_stop_together():
    """The others do not; a rank asks without a signal, and by a handler of the program's own, which stays."""
    program = """
        signal.signal(signal.SIGUSR1, lambda number, frame: distdl.request_stop())
        own = P.create_partition_inclusive([1, 2])
        before = distdl.stop_requested(own)
        ask(signal.SIGUSR1)
        within = distdl.stop_requested(own)
        say(f"rank {P.rank}: {before}, {within}")
        try:
            distdl.stop_requested(3)
        except TypeError as error:
            assert "P is a int" in str(error)
        assert distdl.stop_requested()
        """
    status, said = jobs.ends(BEGINNING + textwrap.dedent(program), 3)
    assert status == 0, said
    assert prints(said) == ["rank 0: False, False", "rank 1: False, True", "rank 2: False, True"]


def test_ranks_that_do_not_all_ask_raise():
    program = """
        layer = distdl.nn.AllSumReduce(P, [0])
        try:
            distdl.stop_requested() if P.rank else layer(torch.ones(3))
        except RuntimeError as error:
            assert "stop_requested" in str(error), error
            say("raised")
        """
    status, said = jobs.ends(BEGINNING + textwrap.dedent(program))
    assert status == 0, said
    assert prints(said) == ["raised"] * 2


def test_the_first_call_outside_of_the_main_thread_raises_on_all_ranks():
    program = """
        import threading
        def first():
            try:
                distdl.stop_requested()
            except ValueError as error:
                say(f"raised {'main thread' in str(error)}")
        if P.rank:
            thread = threading.Thread(target=first)
            thread.start()
            thread.join()
        else:
            first()
        assert not distdl.stop_requested()
        """
    status, said = jobs.ends(BEGINNING + textwrap.dedent(program))
    assert status == 0, said
    assert prints(said) == ["raised True"] * 2
