"""Tests run inside an MPI job, the same tests in the same order on all ranks.

A test that fails on any rank fails on all of them and names the rank. A test that hangs ends the job with the stacks
(faulthandler_timeout in pyproject.toml). Tests that need more than four ranks are marked ``mpi(min_size=N)``: they run
in the jobs that are as large, and jobs of more than four ranks run nothing else. Those marked ``mpi(max_size=1)`` start
jobs of their own.
"""

import gc
import os

import hypothesis
import hypothesis.internal.conjecture.engine
import pytest
from mpi4py import MPI

import distdl

RANKS_OF_SMALL_JOBS = 4

job = MPI.COMM_WORLD.Dup()  # so that messages of the tests' machinery cannot meet those of the tests

# The same examples on all ranks, and nothing that depends on one rank's clock or on the lines that it runs.
hypothesis.settings.register_profile(
    "ranks",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    max_examples=int(os.environ.get("DISTDL_DRAWS", "25")),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink],
)
hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS = float("inf")  # there is a limit to their number
hypothesis.settings.load_profile("ranks")


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """Only rank 0 speaks."""
    if job.rank != 0:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter._tw._file = open(os.devnull, "w")  # noqa: PTH123, SIM115


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what this job is too small or too large for."""
    kept, left_out = [], []
    for item in items:
        marker = item.get_closest_marker("mpi")
        needed = marker.kwargs.get("min_size", 1) if marker else 1
        most = marker.kwargs.get("max_size", job.size) if marker else job.size
        for_any = "DISTDL_DRAWS" in os.environ and item.get_closest_marker("hypothesis") is not None
        small = job.size <= RANKS_OF_SMALL_JOBS
        belongs = needed <= job.size <= most and (needed > RANKS_OF_SMALL_JOBS or small or for_any)
        (kept if belongs else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure on any rank is one on all ranks."""
    report = yield
    outcomes = job.allgather((report.outcome, str(report.longrepr) if report.failed else ""))
    failed = [(rank, text) for rank, (outcome, text) in enumerate(outcomes) if outcome == "failed"]
    if failed:
        report.outcome = "failed"
        report.longrepr = "\n".join(f"--- rank {rank} of {job.size} failed:\n{text}" for rank, text in failed)
    elif any(outcome != report.outcome for outcome, _ in outcomes):
        report.outcome = "failed"
        report.longrepr = f"the ranks' outcomes differ: {[outcome for outcome, _ in outcomes]}"
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
