"""How programs end: while operators are under way, by exceptions, and by signals. Jobs started by a job of one."""

import itertools
import os
import re
import signal
import textwrap

import pytest

from support import jobs

pytestmark = [pytest.mark.ranks(1), pytest.mark.turns(3)]  # the programs are jobs of their own

BEGINNING = """
import copy, os, sys, time, torch
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
    "with all that can be alive": """
        x = torch.ones(3, requires_grad=True)
        y = layer(x)
        z = P.create_partition_inclusive([1, 0])

        class Holder: pass
        holder = Holder()
        holder.me, holder.layer, holder.P, holder.y = holder, layer, P, layer(x)
        sys.modules["kept_to_the_end"] = holder  # a cycle that is collected at the end

        freed = MPI.COMM_WORLD.Dup()
        comms = [freed] + [MPI.COMM_WORLD.Dup() for _ in range(5)]
        kept = [distdl.nn.AllSumReduce(distdl.Partition(comm), [0]) for comm in comms]
        for one in kept:
            one(torch.ones(3))
        freed.Free()
        carts = [MPI.COMM_WORLD.Create_cart([2, 1]), P.create_cartesian_topology_partition([1, 2])]

        torch.manual_seed(0)  # the same weights on all ranks
        model = distdl.nn.DistributedConv1d(P.create_cartesian_topology_partition([1, 1, 2]), 1, 1, 3)
        model(torch.ones(1, 1, 9)).sum().backward()

        import threading
        def work(comm):
            own = distdl.nn.AllSumReduce(distdl.Partition(comm), [0])
            assert own.wait(own.start(torch.ones(3)))[0] == 2
        threads = [threading.Thread(target=work, args=(MPI.COMM_WORLD.Dup(),)) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """,
    "sys.exit": "layer(torch.ones(3)); sys.exit(0)",
    "sys.exit in a hook": """
        x = torch.ones(3, requires_grad=True)
        y = layer(x)
        y.register_hook(lambda g: sys.exit(0))
        y.sum().backward()
        """,
    "MPI.Finalize, and what is used afterwards": """
        y = layer(torch.ones(3))
        same, model = distdl.Partition(MPI.COMM_WORLD), distdl.nn.DistributedPReLU(P)
        kept = distdl.nn.AllSumReduce(distdl.Partition(MPI.COMM_WORLD.Dup()), [0])
        MPI.Finalize()
        raise_after_the_end(MPI.COMM_WORLD, layer, P, model)
        assert P == same and hash(P) == hash(same) and "shape=[2]" in repr(P)
        distdl.set_watchdog(5)  # wakes the watchdog
        time.sleep(0.2)
        """,
    "comm.Free, and what is used afterwards": """
        comm = MPI.COMM_WORLD.Dup()
        P, same = distdl.Partition(comm), distdl.Partition(comm)
        layer = distdl.nn.AllSumReduce(P, [0])
        layer(torch.ones(3))
        model = distdl.nn.DistributedPReLU(P)
        comm.Free()
        raise_after_the_end(MPI.COMM_WORLD, layer, P, model, freed=True)
        assert P == same and hash(P) == hash(same) and "shape=[2]" in repr(P)
        """,
    "os._exit": "layer(torch.ones(3)); MPI.COMM_WORLD.Barrier(); MPI.Finalize(); os._exit(0)",
}
CAUSED = {
    "sys.exit with a status": ("sys.exit(3)", 3),
    "os._exit of one rank": ("layer(torch.ones(3)); os._exit(5) if P.rank else layer(torch.ones(3))", None),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_what_is_under_way_is_finished(program):
    status, said = jobs.ends(BEGINNING + textwrap.dedent(program))
    assert status == 0, said


AFTER_THE_END = """
def raise_after_the_end(bare, layer, P, model, freed=False):
    uses = [
        lambda: layer(torch.ones(3)), lambda: layer.start(torch.ones(3)), lambda: P.allgather_data(1),
        lambda: distdl.nn.Broadcast(P, P), lambda: distdl.nn.DistributedMSELoss(P), lambda: distdl.nn.DistributedPad(P),
        lambda: P.create_partition_union(P), lambda: P.create_partition_inclusive([0]),
        lambda: distdl.functional.broadcast(torch.ones(3), P, P), lambda: distdl.nn.Broadcast(P, bare),
        lambda: distdl.nn.HaloExchange(P, [[1, 1]]), lambda: distdl.fft.fft(torch.ones(3), P),
        lambda: distdl.sequential_state_dict(model), lambda: distdl.load_sequential(model, {}),
        lambda: distdl.sequential_gradients(model), lambda: distdl.clip_grad_norm_(model, 1.0),
        lambda: distdl.check(model), lambda: distdl.save("nowhere", model), lambda: distdl.load("nowhere", model),
        lambda: distdl.scatter(torch.ones(4), P), lambda: distdl.gather(torch.ones(2), P),
        lambda: distdl.distribute(torch.nn.ReLU(), P)(torch.ones(2)), lambda: model(torch.ones(1)),
        lambda: copy.deepcopy(model)(torch.ones(1)),
    ]
    if not freed:
        uses += [lambda: distdl.Partition(bare), lambda: distdl.nn.DistributedMSELoss(bare)]
    for use in uses:
        try:
            use()
        except RuntimeError as error:
            assert "finalized" in str(error), error
        else:
            raise AssertionError("it did not raise")
"""
QUIET = BEGINNING.replace("started = ", "# started = ") + AFTER_THE_END


@pytest.mark.drawn(2, "with all that can be alive")
@pytest.mark.parametrize("program", SILENT.values(), ids=SILENT)
def test_nothing_is_said_at_the_end(program):
    assert jobs.ends(QUIET + textwrap.dedent(program)) == (0, "")


@pytest.mark.parametrize("name", ["with all that can be alive", "MPI.Finalize, and what is used afterwards"])
def test_nothing_is_said_at_the_end_of_plain_python(name):
    assert jobs.ends(QUIET + textwrap.dedent(SILENT[name]), by=()) == (0, "")


@pytest.mark.parametrize(("program", "status"), CAUSED.values(), ids=CAUSED)
def test_what_a_program_causes_itself(program, status):
    """Nothing of ours is said beyond it, and nobody stays."""
    returned, said = jobs.ends(QUIET + textwrap.dedent(program))
    assert returned == status if status is not None else returned != 0
    assert "distdl" not in said
    assert "core dumped" not in said


def test_an_exception_does_not_wait_for_who_never_comes():
    program = """
        with distdl.structure_check(False):
            started.append(layer.start(torch.ones(1 << 16)))  # the first call still votes
            if MPI.COMM_WORLD.rank == 0:
                layer.start(torch.ones(1 << 16))
                raise ValueError("nobody catches this")
            MPI.COMM_WORLD.recv()
        """
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


@pytest.mark.drawn(4)
@pytest.mark.parametrize("by", [(), ("-m", "mpi4py")], ids=["python", "python -m mpi4py"])
@pytest.mark.parametrize("program", UNCAUGHT.values(), ids=UNCAUGHT)
def test_an_uncaught_exception_ends_the_job(program, by):
    status, said = jobs.ends(TWO_RANKS + textwrap.dedent(program), by=by)
    assert status == 1
    assert "Traceback (most recent call last)" in said
    assert "ValueError: nobody catches this" in said
    assert "distdl: rank 1 of 2 ends the job: ValueError was not caught" in said


RAISED_BY_ALL = {
    "of one rank": (
        """
        P_x = P.create_cartesian_topology_partition([2])
        model = distdl.distribute(lambda x: torch.nn.functional.embedding(x, torch.eye(4)), P_x)
        model(torch.tensor([9 if P.rank == 1 else 1]))
        """, 1, "IndexError: distribute: "),
    "of all ranks": ("""
        distdl.distribute(lambda x: x if x.sum() > 0 else -x, P)(x)
        """, 0, "NotImplementedError: distribute: "),
    "of ranks in another order": ("""
        P = distdl.Partition(MPI.COMM_WORLD.Split(0, -P.rank))
        distdl.nn.AllSumReduce(P, ["x"] if P.rank == 0 else [0])
        """, 1, "TypeError: "),
    "of a layer's tensor": ("""
        layer = distdl.nn.DistributedConv1d(P.create_cartesian_topology_partition([1, 1, 2]), 1, 1, 3, padding=1)
        layer("x" if P.rank == 1 else torch.ones(1, 1, 4))
        """, 1, "TypeError: DistributedConv1d: the input of rank 1 "),
    "of a rule for all tensors": ("""
        layer = distdl.nn.DistributedConv1d(P.create_cartesian_topology_partition([1, 1, 2]), 1, 1, 3, padding=1)
        layer(torch.ones(1, 1 + P.rank, 4))
        """, 0, "ValueError: DistributedConv1d: "),
    "of a vote within a set-up": ("""
        class Voting(distdl.nn.DistributedConv1d):
            def set_up(self):
                with distdl.partitions.comparison.agreed("a vote", self.grid, str):
                    if P.rank == 1:
                        raise ValueError("only here")

        Voting(P.create_cartesian_topology_partition([1, 1, 2]), 1, 1, 3, padding=1)(torch.ones(1, 1, 4))
        """, 1, "ValueError: "),
    "of an operator": ("""
        distdl.nn.SumReduce(P, P.create_partition_inclusive([1]))(torch.ones(1 + P.rank))
        """, 0, "ValueError: SumReduce: "),
    "of different calls": ("""
        distdl.nn.AllSumReduce(P, [0])(x) if P.rank == 1 else layer(x)
        """, 0, "RuntimeError: the ranks do not make the same call"),
    "of different backward passes": ("""
        both = layer(x), distdl.nn.AllSumReduce(P, [0])(x)
        both[P.rank].sum().backward()
        """, 0, "RuntimeError: the ranks do not make the same call"),
}  # fmt: skip


@pytest.mark.parametrize("by", [(), ("-m", "mpi4py")], ids=["python", "python -m mpi4py"])
@pytest.mark.parametrize(("program", "rank", "error"), RAISED_BY_ALL.values(), ids=RAISED_BY_ALL)
def test_what_all_ranks_raise_is_shown_by_the_first_that_raised_it(program, rank, error, by):
    status, said = jobs.ends(TWO_RANKS + textwrap.dedent(program), by=by)
    assert status == 1
    assert f"distdl: rank {rank} of 2 ends the job: " in said
    assert said.count("distdl: rank") == 1
    assert f"\n{error}" in said


ANOTHER_TORCH = """
import os, sys, types

if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    sys.modules["distdl._build_info"] = types.SimpleNamespace(torch_version="1.0.0")
import distdl

distdl.Partition().allgather_data(1)
"""


def test_a_rank_on_which_distdl_does_not_load_ends_the_job():
    """The other one waits for it in MPI_Init, or later."""
    status, said = jobs.ends(ANOTHER_TORCH)
    assert status == 1
    assert "built against torch 1.0" in said


RANK_1_SLEEPS = """
P.print_sequential(f"process {os.getpid()}")
if P.rank == 1:
    time.sleep(1000)
layer(x)
"""


@pytest.mark.drawn(2, "SIGINT-rank 0", "SIGKILL-rank 1")
@pytest.mark.parametrize(
    ("what", "whom"),
    [
        *itertools.product([signal.SIGINT, signal.SIGTERM], ["mpiexec", "rank 0", "rank 1"]),
        *itertools.product([signal.SIGKILL], ["rank 0", "rank 1"]),  # mpiexec would have no chance to end them
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_signal_leaves_nothing_running(what, whom):
    """Rank 0 waits in an operator for rank 1, which sleeps."""
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


def test_after_an_mpi_error_a_rank_communicates_no_more_and_ends_the_job():
    """A rank that does not exist: the geometry of partitions never asks for one. The other rank waits all the time."""
    program = """
        from distdl import _core

        y = layer(torch.ones(3, requires_grad=True)).sum()
        calls = (lambda: _core.HostExchange(MPI.COMM_WORLD, [1, 9]), lambda: layer(torch.ones(3)), lambda: y.backward())
        for call in calls if MPI.COMM_WORLD.rank == 1 else [lambda: layer(torch.ones(3))]:
            try:
                call()
            except distdl.MPIError as error:
                print("caught", error, flush=True)
                print("class", MPI.Get_error_class(error.code) == error.error_class == MPI.ERR_RANK, flush=True)
        MPI.Finalize()
        """
    status, said = jobs.ends(BEGINNING + textwrap.dedent(program))
    assert status == 1
    assert len(re.findall("caught MPI_Group_incl: .*[Rr]ank", said)) == 3
    assert said.count("class True") == 3
    assert "distdl: rank 1 ends the job, in which others may wait for it: MPI_Group_incl: " in said


def test_a_layer_that_tells_a_number_hears_of_the_end_of_another_rank():
    """Without the structure check the seed of a dropout is all that its ranks exchange."""
    program = """
        dropout = distdl.nn.DistributedDropout(P.create_cartesian_topology_partition([P.size]))
        with distdl.structure_check(False):
            for _ in range(3):
                dropout(torch.ones(4))
            if P.rank == 0:
                try:
                    dropout(torch.ones(4))
                except RuntimeError as error:
                    print("raised", "do not make the same call" in str(error), "end of the program" in str(error))
        """
    status, said = jobs.ends(TWO_RANKS + textwrap.dedent(program))
    assert (status, said.split()) == (0, ["raised", "True", "True"]), said
