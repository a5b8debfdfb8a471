"""Tests run inside an MPI job, the same tests in the same order on all ranks.

A test that fails on any rank fails on all of them and names the rank. A test that takes five minutes ends the job with
the stacks (faulthandler_timeout in pyproject.toml), and each job names its slowest tests. tests/run.sh starts jobs of
1, 2, 3 or 4, and 20 ranks.

- A test runs in the jobs of 1 to 4 ranks, as far as they are started.
- ``ranks(2, 4)`` names the sizes in which a test can find something new.
- ``mpi(min_size=N)`` leaves out smaller jobs. The job of 20 ranks runs the tests that need more than 4, and no others.
- ``drawn(N)`` marks a long table: each job draws N of its cases, and runs those that the mark names after N as well.
- ``shared`` marks a long table: each case runs in one of the small jobs, which is drawn.

DISTDL_SEED, any text, seeds all that is drawn. tests/run.sh takes a checksum of the sources for it, so that the tests
of many commits cover all cases, and the same sources always run the same tests. Where it is set, less runs:

- one of the jobs of 3 and 4 ranks: DISTDL_TEST_RANKS has the sizes of all jobs that are started;
- a test in one of its jobs, which is drawn, half of the tests on 2 ranks;
- of tests that are marked ``turns(N)`` one in N, which are drawn;
- in each job an eighth of every other table, and at least four of its cases.

With ``--whole`` all cases run in jobs of all sizes that their marks allow. A test that draws N examples (hypothesis)
draws a quarter of them in each job. DISTDL_DRAWS is the number of examples in a job, and lets jobs of any size draw,
also tests that draw without hypothesis and are marked ``draws``.
"""

import atexit
import collections
import gc
import os
import random
import re
import shutil
import tempfile
from pathlib import Path

import hypothesis
import hypothesis.internal.conjecture.engine
import numpy as np
import pytest
import torch
from mpi4py import MPI

import distdl
from support.ranks import examples_of

SEED = os.environ.get("DISTDL_SEED", "")
SMALL_JOBS = (1, 2, 3, 4)
STARTED = os.environ.get("DISTDL_TEST_RANKS", "1 2 3 4").split()
OUTCOMES = ("passed", "skipped", "failed")

job = MPI.COMM_WORLD.Dup()  # so that messages of the tests' machinery cannot meet those of the tests

# The same examples on all ranks, and nothing that depends on one rank's clock or on the lines that it runs.
hypothesis.settings.register_profile(
    "ranks",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    max_examples=examples_of(100),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink],
)
hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS = float("inf")  # there is a limit to their number
hypothesis.settings.load_profile("ranks")


def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true", help="run all cases of the tables of which jobs run a share")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Each rank has a folder of its own: pytest's numbered ones are shared, and looked for while others make theirs."""
    if config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, config.option.basetemp, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """Only rank 0 speaks."""
    if job.rank != 0:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter._tw._file = open(os.devnull, "w")  # noqa: PTH123, SIM115


def pytest_ignore_collect(collection_path):
    """Large jobs collect no file without a test for them, which would take them longer than all of their tests."""
    if job.size <= max(SMALL_JOBS) or "DISTDL_DRAWS" in os.environ or collection_path.suffix != ".py":
        return None
    needed = re.findall(r"mpi\(min_size=(\d+)\)", collection_path.read_text())
    return None if any(int(size) > max(SMALL_JOBS) for size in needed) else True


def jobs_of(item, number, whole):
    """The sizes of the jobs that run a test, whose place in its table is `number`."""
    marks = {mark.name: item.get_closest_marker(mark.name) for mark in item.iter_markers()}
    needed = marks["mpi"].kwargs["min_size"] if "mpi" in marks else 1
    if needed > max(SMALL_JOBS):
        return [job.size] if job.size >= needed else []
    sizes = [size for size in (marks["ranks"].args if "ranks" in marks else SMALL_JOBS) if size >= needed]
    if not whole:
        draw = random.Random(f"{SEED} {item.path.stem} {item.originalname} {number}")
        sizes = drawn_sizes([size for size in sizes if str(size) in STARTED], marks, draw)
    draws = {"hypothesis", "draws"} & set(marks)
    return [*sizes, job.size] if "DISTDL_DRAWS" in os.environ and draws else sizes


def drawn_sizes(sizes, marks, draw):
    """The sizes of jobs in which a test runs without ``--whole``: at most one with a seed, or from a shared table."""
    if SEED or "shared" in marks:
        others = [size for size in sizes if size != 2]
        on_two = 2 in sizes and (not others or draw.random() < 0.5)
        sizes = [2] if on_two else draw.sample(others, min(1, len(others)))
    if SEED and "turns" in marks and draw.randrange(marks["turns"].args[0]):
        return []
    return sizes


def drawn_cases(items):
    """The names of all tests outside of tables, and of the cases drawn from each table."""
    tables = collections.defaultdict(list)
    for item in items:
        tables[item.nodeid.partition("[")[0]].append(item)
    chosen = set()
    for table, cases in tables.items():
        mark = cases[0].get_closest_marker("drawn")
        names, named = [item.nodeid for item in cases], []
        count = len(names)
        if mark:
            count, named = mark.args[0], [f"{table}[{case}]" for case in mark.args[1:]]
        elif SEED:
            count = max(4, -(-count // 8))
        chosen.update(named, random.Random(f"{SEED} {table} {job.size}").sample(names, min(count, len(names))))
    return chosen


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what other jobs run, and let each job draw examples of its own."""
    kept, left_out, numbers, whole = [], [], collections.Counter(), config.getoption("--whole")
    chosen = drawn_cases(items)
    for item in items:
        table = item.nodeid.partition("[")[0]
        runs = job.size in jobs_of(item, numbers[table], whole) and (whole or item.nodeid in chosen)
        (kept if runs else left_out).append(item)
        numbers[table] += 1
        if item.get_closest_marker("hypothesis") is not None:
            hypothesis.seed(f"{item.originalname} on {job.size} ranks{SEED}")(item.obj)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure on any rank fails on all ranks."""
    report = yield
    outcome = OUTCOMES.index(report.outcome)
    extremes = np.array([-outcome, outcome])
    job.Allreduce(MPI.IN_PLACE, extremes, MPI.MAX)
    least, most = -extremes[0], extremes[1]
    if OUTCOMES[most] == "failed":
        texts = job.allgather(str(report.longrepr) if report.failed else "")
        failed = (f"--- rank {rank} of {job.size} failed:\n{text}" for rank, text in enumerate(texts) if text)
        report.outcome, report.longrepr = "failed", "\n".join(failed)
    elif least != most:
        report.outcome = "failed"
        report.longrepr = f"the ranks' outcomes differ: {job.allgather(OUTCOMES[outcome])}"
    return report


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """The first rank that ends with an error ends the job: not before rank 0 has said everything."""
    job.Barrier()


@pytest.fixture(scope="module", autouse=True)
def little_to_look_through():
    """Tests collect garbage: what pytest and the modules before them keep is none, and would take 0.3 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def P_world(request):
    """The partition of all ranks of the job.

    A test that draws has one of its own: what is drawn has many communicators, of which MPI has two thousand.
    """
    if request.node.get_closest_marker("hypothesis") is None:
        yield distdl.Partition(MPI.COMM_WORLD)
        return
    own = MPI.COMM_WORLD.Dup()
    yield distdl.Partition(own)
    own.Free()


@pytest.fixture
def fresh_compiler():
    """Nothing that was compiled before, and nothing that stays."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def folder():
    """A folder that all ranks agree on."""
    own = tempfile.TemporaryDirectory() if job.rank == 0 else None
    yield Path(job.bcast(own.name if own else None))
    job.Barrier()
    if own:
        own.cleanup()
