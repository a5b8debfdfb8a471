"""Signals that programs handle: ranks stop at the same step."""

import os
import signal
import textwrap
import time

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


@pytest.mark.drawn(2)
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_signal_for_one_rank_stops_all_at_the_same_step(number, ranks):
    program = f"""
        layer, loss = distdl.nn.AllSumReduce(P, [0]), distdl.nn.DistributedMSELoss(P)
        for step in range(10):
            loss(layer(torch.ones(3)), torch.ones(3))  # within which a signal would wait
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


def test_signals_wait_for_the_end_of_the_outer_call():
    program = """
        came = []
        signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
        outer, inner = distdl._core.HeldSignals(), distdl._core.HeldSignals()
        ask(signal.SIGUSR1)
        del inner
        within = len(came)
        del outer
        say(f"{within} {len(came)}")
        """
    status, said = jobs.ends(BEGINNING + textwrap.dedent(program), 1)
    assert status == 0, said
    assert prints(said) == ["0 1"]


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


RAISES = """
class Stop(Exception):
    pass

def handler(number, frame):
    raise Stop

signal.signal(signal.SIGALRM, handler)
signal.signal(signal.SIGUSR1, handler)
torch.manual_seed(0)
P_x = P.create_cartesian_topology_partition([1, 1, P.size])
"""


def test_a_handler_runs_when_the_call_of_the_layer_is_over():
    """Before the exchange with rank 0, which would wait for ever. Both learn of it in their next call."""
    program = """
        layers = [distdl.nn.DistributedConv1d(P_x, 2, 2, 3, padding=1) for _ in range(6)]
        compute, meet = distdl.nn.DistributedConv1d.compute, distdl.nn.AllSumReduce(P, [0])

        def interrupted(self, x):
            if self is layers[2]:
                ask(signal.SIGUSR1)
            return compute(self, x)

        distdl.nn.DistributedConv1d.compute = interrupted
        x, done = torch.ones(1, 2, 4), 0
        try:
            for layer in layers:
                x, done = layer(x), done + 1
        except Stop:
            try:
                meet(torch.ones(1))
            except RuntimeError as error:
                say(f"rank {P.rank} {done} {'do not make the same call' in str(error)}")
        except RuntimeError as error:
            say(f"rank {P.rank} {done} {'do not make the same call' in str(error)}")
        """
    status, said = jobs.ends(BEGINNING + RAISES + textwrap.dedent(program))
    assert status == 0, said
    assert prints(said) == ["rank 0 3 True", "rank 1 2 True"]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("ranks", [2, 3])
def test_nobody_waits_for_a_rank_whose_handler_raised(ranks):
    """Rank 1 is interrupted anywhere, many times, and makes another call then: all ranks raise, or all go on."""
    program = f"""
        import random
        random.seed({ranks})
        model = torch.nn.Sequential(*[distdl.nn.DistributedConv1d(P_x, 2, 2, 3, padding=1) for _ in range(6)])
        meet = distdl.nn.AllSumReduce(P, [0])
        model(torch.ones(1, 2, 8))
        stopped = 0
        for attempt in range(60):
            MPI.COMM_WORLD.Barrier()
            try:
                if P.rank == 1:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 5e-3))
                for _ in range(3):
                    model(torch.ones(1, 2, 8)).sum()
            except Stop:
                stopped += 1
            except RuntimeError as error:
                assert "do not make the same call" in str(error), error
                continue
            except ValueError as error:  # it raised where a layer looks at what it was given, and so on all ranks
                assert "cannot be passed on: Stop" in str(error), error
                continue
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            try:
                meet(torch.ones(1))
            except RuntimeError as error:
                assert "do not make the same call" in str(error), error
        MPI.COMM_WORLD.Barrier()
        say(f"done {{bool(stopped) == (P.rank == 1)}}")
        """
    status, said = jobs.ends(BEGINNING + RAISES + textwrap.dedent(program), ranks)
    assert status == 0, said
    assert prints(said) == ["done True"] * ranks


TRAINS = """
import random, tempfile, threading
torch.manual_seed(0)
P_x = P.create_cartesian_topology_partition([1, 1, P.size])
layers = [distdl.nn.DistributedConv1d(P_x, 2, 2, 3, padding=1) for _ in range(3)]
model = torch.nn.Sequential(*layers)
if replicated:
    model = distdl.DataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)), P)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.ones(1, 2, 8)

def train():
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()

train()
"""


@pytest.mark.drawn(2)
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("told", ["all", "last"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ctrl_c_reaches_all_ranks_at_the_same_call(ranks, told, replicated, tmp_path):
    """It comes anywhere, to each rank at another time, or to one rank alone. All ranks save what they have trained."""
    program = f"""
        random.seed(P.rank)
        for attempt in range(4):
            time.sleep(1.1)  # what comes within a second is the same Ctrl-C
            MPI.COMM_WORLD.Barrier()
            step = 0
            if {told == "all"} or P.rank == P.size - 1:
                threading.Timer(random.uniform(0, 0.02), os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                while True:
                    train()
                    step += 1
            except KeyboardInterrupt:
                distdl.save("{tmp_path}/state", model, optimizer)
            distdl.load("{tmp_path}/state", model, optimizer)
            assert len(set(MPI.COMM_WORLD.allgather(step))) == 1
        say("saved")
        """
    program = BEGINNING + f"replicated = {replicated}\n" + TRAINS + textwrap.dedent(program)
    status, said = jobs.ends(program, ranks)
    assert status == 0, said
    assert [line for line in prints(said) if not line.startswith("distdl: all ranks are interrupted")] == [
        "saved"
    ] * ranks


def test_ctrl_c_reaches_all_ranks_where_they_start_an_operator():
    program = """
        layer = distdl.nn.AllSumReduce(P, [0])
        step = 0
        ask(signal.SIGINT)
        try:
            while True:
                layer.wait(layer.start(torch.ones(3)))
                step += 1
        except KeyboardInterrupt:
            say(f"{len(set(MPI.COMM_WORLD.allgather(step)))}")
        """
    status, said = jobs.ends(BEGINNING + textwrap.dedent(program))
    assert status == 0, said
    assert [line for line in prints(said) if not line.startswith("distdl: all ranks are interrupted")] == ["1"] * 2


@pytest.mark.drawn(2)
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("where", ["layer", "exchange"])
def test_a_second_ctrl_c_ends_a_job_that_hangs(where, stops):
    """Rank 0 waits for a rank that never comes, in a layer's data or for its vote."""
    program = f"""
        if {stops}:
            distdl.stop_requested()
        layer, compute = layers[0], distdl.nn.DistributedConv1d.compute

        def never_comes(self, x):
            time.sleep(1000)

        if P.rank and {where == "layer"}:
            distdl.nn.DistributedConv1d.compute = never_comes
        say(f"pid {{os.getpid()}} {{P.rank}}")
        if P.rank and {where == "exchange"}:
            time.sleep(1000)
        layer(x) if {where == "layer"} else P.allgather_data([1])
        """
    job = jobs.started(BEGINNING + "replicated = False\n" + TRAINS + textwrap.dedent(program))
    waits = pid_of(job, rank=0)
    time.sleep(1)
    os.kill(waits, signal.SIGINT)
    time.sleep(1.5)
    assert job.poll() is None
    os.kill(waits, signal.SIGINT)
    status, said = jobs.end_of(job)
    assert status != 0
    assert "interrupted twice while this rank waits for other ranks" in said


@pytest.mark.drawn(1)
@pytest.mark.parametrize("everybody", [False, True])
@pytest.mark.parametrize("stops", [False, True])
def test_a_second_ctrl_c_while_ranks_compute(stops, everybody):
    """On a rank that asks nobody, it is an exception at once, which ends the job."""
    program = f"""
        if {stops}:
            distdl.stop_requested()
        say(f"pid {{os.getpid()}} {{P.rank}}")
        while {everybody} or P.rank == 0:
            time.sleep(0.01)
        layers[0](x)
        """
    job = jobs.started(BEGINNING + "replicated = False\n" + TRAINS + textwrap.dedent(program))
    computes = pid_of(job, rank=0)
    time.sleep(1)
    for _ in range(3 if stops else 2):  # with stop_requested() the first one asks to stop
        assert job.poll() is None
        os.kill(computes, signal.SIGINT)
        time.sleep(1.5)
    status, said = jobs.end_of(job)
    assert status != 0
    assert "KeyboardInterrupt" in said


def pid_of(job, rank):
    """Of a rank that has said it."""
    for line in job.stdout:
        if line.startswith("pid ") and line.split()[2] == str(rank):
            return int(line.split()[1])
    raise AssertionError("the job has ended")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("stops", [False, True])
def test_workers_of_a_loader_do_not_end_by_ctrl_c(stops):
    """A terminal tells them too. They end with the loop, as ever."""
    program = f"""
        from torch.utils.data import DataLoader

        def all_processes():
            children = f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children"
            return [os.getpid(), *map(int, open(children).read().split())]

        stopped, workers = False, []
        if {stops}:
            distdl.stop_requested()
        loader = DataLoader(list(range(1000)), num_workers=2)
        try:
            for step, _ in enumerate(loader):
                if step == 4:
                    workers = all_processes()[1:]
                    assert len(workers) == 2
                    for one in workers + [os.getpid()]:
                        os.kill(one, signal.SIGINT)
                train()
                if {stops} and distdl.stop_requested():
                    stopped = True
                    break
        except KeyboardInterrupt:
            stopped = not {stops}
        del loader
        left = set(workers) & set(all_processes())
        say(f"{{stopped}} {{step in (4, 5)}} {{left}}")
        """
    program = BEGINNING + "replicated = False\n" + TRAINS + textwrap.dedent(program)
    status, said = jobs.ends(program)
    assert status == 0, said
    assert [line for line in prints(said) if not line.startswith("distdl: all ranks are")] == ["True True set()"] * 2
