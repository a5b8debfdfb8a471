"""How programs end: while operators are under way, by exceptions, and by signals. Jobs started by a job of one."""

import os
import re
import signal
import textwrap

import pytest

import jobs
from support import job

BEGINNING = """
import os, sys, torch
from mpi4py import MPI
import distdl

P = distdl.Partition(MPI.COMM_WORLD)
layer = distdl.nn.AllSumReduce(P, [0])
started = [layer.start(torch.ones(1 << 16)) for _ in range(20)]
"""
ENDS = {
    "by itself": "",
    "sys.exit": "sys.exit(0)",
    "MPI.Finalize": """
        MPI.Finalize()
        assert all(bool((layer.wait(one) == 2).all()) for one in started)
        """,
    "a forked child's": """
        child = os.fork()
        if child == 0:
            del started
            import atexit
            atexit._run_exitfuncs()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert all(bool((layer.wait(one) == 2).all()) for one in started)
        """,
}


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_what_is_under_way_is_finished(program):
    if job.size == 1:
        assert jobs.ends(BEGINNING + textwrap.dedent(program))[0] == 0


def test_an_exception_does_not_wait_for_who_never_comes():
    program = """
        with distdl.structure_check(False):
            if MPI.COMM_WORLD.rank == 0:
                layer.start(torch.ones(1 << 16))
                raise ValueError("nobody catches this")
            MPI.COMM_WORLD.recv()
        """
    if job.size == 1:
        status, said = jobs.ends(BEGINNING + textwrap.dedent(program))
        assert status != 0
        assert "nobody catches this" in said


TWO_RANKS = """
import os, sys, time, torch
from mpi4py import MPI
import distdl

P = distdl.Partition(MPI.COMM_WORLD)
layer = distdl.nn.AllSumReduce(P, [0])
x = torch.ones(3, requires_grad=True)
y = layer(x)
"""
UNCAUGHT = {
    "while others wait in an operator": """
        if P.rank == 1:
            raise ValueError("nobody catches this")
        layer(x)
        """,
    "while others wait in MPI": """
        if P.rank == 1:
            raise ValueError("nobody catches this")
        MPI.COMM_WORLD.Barrier()
        """,
    "in a backward pass": """
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise ValueError("nobody catches this")

        (Fails.apply(y) if P.rank == 1 else y).sum().backward()
        """,
    "with a hook of the program's own": """
        shown = sys.excepthook
        sys.excepthook = lambda *error: shown(*error)
        if P.rank == 1:
            raise ValueError("nobody catches this")
        layer(x)
        """,
}


@pytest.mark.parametrize("by", [(), ("-m", "mpi4py")], ids=["python", "python -m mpi4py"])
@pytest.mark.parametrize("program", UNCAUGHT.values(), ids=UNCAUGHT)
def test_an_uncaught_exception_ends_the_job(program, by):
    if job.size == 1:
        status, said = jobs.ends(TWO_RANKS + textwrap.dedent(program), by=by)
        assert status == 1
        assert "Traceback (most recent call last)" in said
        assert "ValueError: nobody catches this" in said
        assert "distdl: rank 1 of 2 ends the job: ValueError was not caught" in said


RANK_1_SLEEPS = """
P.print_sequential(f"process {os.getpid()}")
if P.rank == 1:
    time.sleep(1000)
layer(x)
"""


@pytest.mark.parametrize("whom", ["mpiexec", "rank 0", "rank 1"])
@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_signal_leaves_nothing_running(what, whom):
    """Rank 0 waits in an operator for rank 1, which sleeps. Killed itself, mpiexec has no chance to end them."""
    if job.size > 1 or (what, whom) == (signal.SIGKILL, "mpiexec"):
        return
    waiting = jobs.started(TWO_RANKS + RANK_1_SLEEPS, by=())
    processes = []
    while len(processes) < 2:
        processes += map(int, re.findall(r"process (\d+)", waiting.stdout.readline()))
    os.kill({"mpiexec": waiting.pid, "rank 0": processes[0], "rank 1": processes[1]}[whom], what)
    if (what, whom) == (signal.SIGINT, "rank 0"):  # Python hears of it when the wait is over
        os.kill(processes[1], what)
    status, said = jobs.end_of(waiting)
    assert status != 0, said
    assert all(jobs.is_gone(process) for process in processes)
