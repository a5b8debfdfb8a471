"""How programs end while operators are under way. Each is a job of two ranks, started by a job of one."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

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


def ends(program):
    """The exit status and what was said, of a program that is given a minute."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYD", "MPI"))}
    command = ["mpiexec", "-n", "2", sys.executable, "-m", "mpi4py", "-c", BEGINNING + textwrap.dedent(program)]
    done = subprocess.run(command, env=outside, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_what_is_under_way_is_finished(program):
    if job.size == 1:
        assert ends(program)[0] == 0


def test_an_exception_does_not_wait_for_who_never_comes():
    program = """
        with distdl.structure_check(False):
            if MPI.COMM_WORLD.rank == 0:
                layer.start(torch.ones(1 << 16))
                raise ValueError("nobody catches this")
            MPI.COMM_WORLD.recv()
        """
    if job.size == 1:
        status, said = ends(program)
        assert status != 0
        assert "nobody catches this" in said


def test_after_an_mpi_error_a_rank_communicates_no_more_and_ends_the_job():
    """A rank that does not exist: the geometry of partitions never asks for one. The other rank waits all the time."""
    program = """
        from distdl._load import _core

        y = layer(torch.ones(3, requires_grad=True)).sum()
        calls = (lambda: _core.Forum(MPI.COMM_WORLD, [1, 9]), lambda: layer(torch.ones(3)), lambda: y.backward())
        for call in calls if MPI.COMM_WORLD.rank == 1 else [lambda: layer(torch.ones(3))]:
            try:
                call()
            except distdl.MPIError as error:
                print("caught", error, flush=True)
        MPI.Finalize()
        """
    if job.size == 1:
        status, said = ends(program)
        assert status == 1
        assert len(re.findall("caught MPI_Group_incl: .*[Rr]ank", said)) == 3
        assert "distdl: rank 1 ends the job, in which others may wait for it: MPI_Group_incl: " in said
