"""How programs end while operators are under way. Each is a job of two ranks, started by a job of one."""

import os
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


SILENT = {
    "what is alive": "x = torch.ones(3, requires_grad=True); y = layer(x); z = P.create_partition_inclusive([1, 0])",
    "sys.exit": "layer(torch.ones(3)); sys.exit(0)",
    "sys.exit in a hook": """
        x = torch.ones(3, requires_grad=True)
        y = layer(x)
        y.register_hook(lambda g: sys.exit(0))
        y.sum().backward()
        """,
    "MPI.Finalize": "y = layer(torch.ones(3)); MPI.Finalize()",
    "MPI.Finalize and what is used afterwards": """
        MPI.Finalize()
        for use in (lambda: layer(torch.ones(3)), lambda: P.allgather_data(1), lambda: distdl.nn.Broadcast(P, P)):
            try:
                use()
            except Exception as error:
                assert "finalized" in str(error), error
            else:
                raise AssertionError("it did not raise")
        """,
    "a freed communicator": """
        comm = MPI.COMM_WORLD.Dup()
        kept = distdl.nn.AllSumReduce(distdl.Partition(comm), [0])
        kept(torch.ones(3))
        comm.Free()
        """,
    "communicators that are not freed": """
        comms = [MPI.COMM_WORLD.Dup() for _ in range(5)]
        kept = [distdl.nn.AllSumReduce(distdl.Partition(comm), [0]) for comm in comms]
        carts = [MPI.COMM_WORLD.Create_cart([2, 1]), P.create_cartesian_topology_partition([1, 2])]
        for one in kept:
            one(torch.ones(3))
        """,
    "a model": """
        model = distdl.nn.DistributedConv1d(P.create_cartesian_topology_partition([1, 1, 2]), 1, 1, 3)
        model(torch.ones(1, 1, 9)).sum().backward()
        """,
    "a cycle that is collected at the end": """
        class Holder: pass
        holder = Holder()
        holder.me, holder.layer, holder.P, holder.y = holder, layer, P, layer(torch.ones(3, requires_grad=True))
        sys.modules["kept_to_the_end"] = holder
        """,
    "threads": """
        import threading
        def work(comm):
            own = distdl.nn.AllSumReduce(distdl.Partition(comm), [0])
            assert own.wait(own.start(torch.ones(3)))[0] == 2
        threads = [threading.Thread(target=work, args=(MPI.COMM_WORLD.Dup(),)) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """,
    "os._exit": "layer(torch.ones(3)); MPI.COMM_WORLD.Barrier(); MPI.Finalize(); os._exit(0)",
}
CAUSED = {
    "sys.exit with a status": ("sys.exit(3)", 3, ""),
    "an exception on all ranks": ("raise ValueError('of the program')", 1, "ValueError: of the program"),
    "os._exit of one rank": ("layer(torch.ones(3)); os._exit(5) if P.rank else layer(torch.ones(3))", None, ""),
}


def ends(program, beginning=BEGINNING, launcher=("-m", "mpi4py")):
    """The exit status and what was said, of a program that is given three minutes."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYD", "MPI"))}
    command = ["mpiexec", "-n", "2", sys.executable, *launcher, "-c", beginning + textwrap.dedent(program)]
    done = subprocess.run(command, env=outside, capture_output=True, text=True, timeout=180)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_what_is_under_way_is_finished(program):
    if job.size == 1:
        assert ends(program)[0] == 0


QUIET = BEGINNING.replace("started = ", "# started = ")


@pytest.mark.parametrize("program", SILENT.values(), ids=SILENT)
def test_nothing_is_said_at_the_end(program):
    if job.size == 1:
        assert ends(program, QUIET) == (0, "")


@pytest.mark.parametrize("name", ["what is alive", "MPI.Finalize"])
def test_nothing_is_said_at_the_end_of_plain_python(name):
    if job.size == 1:
        assert ends(SILENT[name], QUIET, launcher=()) == (0, "")


@pytest.mark.parametrize(("program", "status", "expected"), CAUSED.values(), ids=CAUSED)
def test_what_a_program_causes_itself(program, status, expected):
    """Nothing of ours is said beyond it, and nobody stays."""
    if job.size == 1:
        returned, said = ends(program, QUIET)
        assert returned == status if status is not None else returned != 0
        assert expected in said
        assert "distdl" not in said
        assert "core dumped" not in said


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
