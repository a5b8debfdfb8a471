"""Programs whose ranks lose each other: each is told what happened, and ends. All are jobs started by a job of one."""

import re

import pytest

import distdl
from support.jobs import ends

pytestmark = [pytest.mark.ranks(1), pytest.mark.turns(3)]  # the programs are jobs of their own

BEGINNING = """
import sys, time, torch
from mpi4py import MPI
import distdl

rank = MPI.COMM_WORLD.rank
P = distdl.Partition(MPI.COMM_WORLD)
one, other = distdl.nn.AllSumReduce(P, [0]), distdl.nn.AllSumReduce(P, [0])
x = torch.ones(3, requires_grad=True)

def step():
    return one(x)

def evaluate():
    time.sleep({seconds})

step()
"""
STEP = r"step(: return one\(x\))?"  # Python 3.13 and later know the lines of such programs
THE_END = "AllSumReduce number 1, at <string>:12 in step.*; rank 1: the end of the program"
# What is found at once, with what the exception says.
AT_ONCE = {
    "a call that one rank leaves out": (
        "if rank == 0: step()\nother(x)",
        rf"number 1, at .* in {STEP}; .*number 2, at",
    ),
    "another order": ("for layer in (one, other)[:: 1 if rank == 0 else -1]: layer(x)", "number 1, at.*number 2, at"),
    "one call less": ("if rank == 0: step()", THE_END),
    "one call less, and the end by hand": ("if rank == 0: step()\nelse: MPI.Finalize()", THE_END),
    "backward on one rank": (
        "y = step().sum()\nif rank == 0: y.backward()",
        "rank 0: AllSumReduce number 1, backward, at .*; rank 1: the end of the program",
    ),
    "backward on one rank, and another call": (
        "y = step().sum()\nif rank == 0: y.backward()\nelse: step()",
        "rank 0: AllSumReduce number 1, backward, at .*; rank 1: AllSumReduce number 1, at .* in step",
    ),
    "other inputs of torch.autograd.grad": (
        "z = other(x); loss = (step() * z).sum(); torch.autograd.grad(loss, [x, z][rank])",
        r"rank 0: AllSumReduce number \d, backward, at .*; rank 1: the end of the program; a backward pass runs on a "
        "rank only through calls on which its loss and the inputs of torch.autograd.grad depend",
    ),
    "a communicator freed on one rank": (
        "comm = MPI.COMM_WORLD.Dup(); one = distdl.nn.AllSumReduce(distdl.Partition(comm), [0]); step()\n"
        "if rank == 0: step()\ncomm.Free()",
        rf"rank 0: AllSumReduce number 1, at .* in {STEP}; rank 1: freeing the communicator, at <string>:",
    ),
    "a layer made on one rank": (
        "if rank == 0: distdl.nn.AllSumReduce(P, [0])",
        "rank 0: construction of AllSumReduce, at .*; rank 1: the end of the program",
    ),
}


@pytest.mark.drawn(3, "backward on one rank")
@pytest.mark.parametrize(("program", "message"), AT_ONCE.values(), ids=AT_ONCE)
def test_who_makes_another_call_or_none(program, message):
    status, said = ends(BEGINNING.format(seconds=0) + program, by=(), DISTDL_WATCHDOG="0")
    assert status != 0
    assert "RuntimeError: the ranks do not make the same call; rank 0: " in said
    assert re.search(message, said), said


@pytest.mark.drawn(2)
@pytest.mark.parametrize("mistake", ["", "try: distdl.save('no/file', None)\n    except TypeError: pass"])
@pytest.mark.parametrize("waiting", [(0,), (0, 2)], ids=str)
def test_the_end_is_told_to_whomever_waits(waiting, mistake):
    """Rank 1 is at its end, also after an exception that nobody else could know of; others wait on any communicator."""
    program = f"""
import sys, torch, distdl
P = distdl.Partition()
layers = [distdl.nn.AllSumReduce(one, [0]) for one in (P, P.create_partition_inclusive([0, 1]))]
x = torch.ones(3)
layers[0](x)
if P.rank == 1:
    {mistake or "pass"}
elif P.rank in {waiting}:
    try: layers[{int(waiting == (0,))}](x)
    except RuntimeError as error: sys.stdout.write(f"raised: {{error}}\\n")  # a line at once, whole between others
"""
    status, said = ends(program, ranks=3, DISTDL_WATCHDOG="0")
    assert status == 0, said
    told = re.findall(r"raised: the ranks do not make the same call; .*rank 1: the end of the program", said)
    assert len(told) == len(waiting), said


def test_an_exit_of_one_rank():
    program = f"{BEGINNING.format(seconds=0)}if rank == 1: sys.exit(3)\nstep()"
    assert ends(program)[0] == 3
    status, said = ends(program, by=())
    assert status != 0
    assert re.search(THE_END, said), said


WAITS_FOR_EVALUATION = "if rank == 1: evaluate()\nstep()\nsys.stdout.write('rank %d is done' % rank + chr(10))"
REPORT = (
    r"distdl: rank 0 \(process \d+ on .*\) waits in AllSumReduce number 1: not all ranks have come after 1 s; "
    r"rank 0: waits in AllSumReduce number 1, at <string>:12 in step; "
    r"rank 1: is in no operation; the last one was AllSumReduce number 1, at <string>:15 in evaluate\n"
)


def test_the_watchdog_says_who_waits_for_whom():
    status, said = ends(BEGINNING.format(seconds=5) + WAITS_FOR_EVALUATION, DISTDL_WATCHDOG="1")
    assert status == 0, said
    assert len(re.findall(REPORT, said)) == 1, said
    assert len(re.findall("not all ranks have come after 2 s", said)) == 1, said
    assert "rank 0 is done" in said
    assert "rank 1 is done" in said


def test_the_watchdog_names_the_programs_line_around_a_metric():
    program = """
import torchmetrics
metric = distdl.sync_metric(torchmetrics.MeanMetric(), P)
metric.update(x.detach())

def score():
    return metric.compute()

if rank == 1:
    evaluate()
score()
"""
    status, said = ends(BEGINNING.format(seconds=4) + program, DISTDL_WATCHDOG="1")
    assert status == 0, said
    assert re.search(r"rank 0: waits in compute\(\) of MeanMetric, at <string>:\d+ in score; rank 1", said), said


def test_the_watchdog_ends_the_job():
    program = BEGINNING.format(seconds=1000) + WAITS_FOR_EVALUATION
    status, said = ends(program, DISTDL_WATCHDOG="1", DISTDL_WATCHDOG_END="1")
    assert status != 0
    assert re.search(REPORT, said), said


def test_the_watchdog_is_off():
    status, said = ends(BEGINNING.format(seconds=3) + "distdl.set_watchdog(0)\n" + WAITS_FOR_EVALUATION)
    assert status == 0, said
    assert "not all ranks" not in said


def test_the_watchdog_sees_a_wait_of_the_programs_own():
    program = """
    if rank == 0:
        evaluate()
    with distdl.watchdog.waiting("a barrier of my own"):
        MPI.COMM_WORLD.Barrier()
    """
    program = BEGINNING.format(seconds=4) + program.replace("\n    ", "\n")
    status, said = ends(program, DISTDL_WATCHDOG="1")
    assert status == 0, said
    assert re.search(r"rank 1 .* waits in a barrier of my own: .* at <string>:\d+", said), said


RING = """
pairs = [P.create_partition_inclusive(pair) for pair in ([0, 1], [1, 2], [0, 2])]
layers = [distdl.nn.AllSumReduce(pair, [0]) for pair in pairs]
layers[rank](x)
"""


def test_debugging_ends_a_ring_of_waits():
    """Rank 0 waits for 1, which waits for 2, which waits for 0: in votes of different ranks."""
    status, said = ends(BEGINNING.format(seconds=0) + RING, ranks=3, by=(), DISTDL_DEBUG="1", DISTDL_WATCHDOG="1")
    assert status != 0
    assert re.search("RuntimeError: AllSumReduce number 1: not all ranks have come after 1 s; rank ", said), said


def test_debugging_raises_where_others_do_not_come():
    program = """
    try:
        step() if rank == 0 else evaluate()
    except RuntimeError as error:
        print(error, flush=True)
        try:
            step()
        except RuntimeError as refused:
            print(refused, flush=True)
        time.sleep(1)  # mpiexec forgets what it has not read when the job is aborted
        MPI.COMM_WORLD.Abort(7)
    """
    program = BEGINNING.format(seconds=1000) + program.replace("\n    ", "\n")
    status, said = ends(program, DISTDL_DEBUG="1", DISTDL_WATCHDOG="1")
    assert status == 7
    assert "rank 1: is in no operation; the last one was AllSumReduce number 1, at <string>:15 in evaluate" in said
    assert "an earlier call on these ranks was given up" in said


def test_debugging_checks_what_the_program_wants_unchecked():
    program = BEGINNING.format(seconds=0) + "with distdl.structure_check(False): (one if rank == 0 else other)(x)"
    status, said = ends(program, DISTDL_DEBUG="1")
    assert status != 0
    what = r"call \d+ on these ranks, with Float \[3\], at "
    assert re.search(rf"the same call; rank 0: AllSumReduce number 1, {what}.*; rank 1: .* number 2, {what}", said), (
        said
    )


@pytest.mark.parametrize("debugging", [0, 1])
def test_debugging_on_some_ranks(debugging):
    before = (
        f"import os\nfrom mpi4py import MPI\nos.environ['DISTDL_DEBUG'] = str(int(MPI.COMM_WORLD.rank == {debugging}))"
    )
    status, said = ends(before + BEGINNING.format(seconds=0))
    assert status != 0
    assert "DISTDL_DEBUG is set on some ranks and not on others" in said


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_seconds_of_the_watchdog(seconds):
    with pytest.raises(ValueError, match="finite number of at least 0"):
        distdl.set_watchdog(seconds)
