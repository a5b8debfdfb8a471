"""The environment variables: their page has all that the sources read, and values are checked."""

import pytest
import torch

from distdl import memory
from distdl.process import environment
from support.programs import ROOT, load_program


@pytest.mark.ranks(1)
def test_the_page_is_current():
    """`python docs/environment_variables.py` writes it."""
    program = load_program("docs/environment_variables")
    assert (ROOT / "docs" / "environment_variables.rst").read_text() == program.text()
    assert "``DISTDL_WATCHDOG``" in program.text()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", ["DEBUG", "PROGRESS_BARS", "PROGRESS_THREAD", "WATCHDOG_END"])
@pytest.mark.parametrize("value", ["true", "no"])
def test_a_switch_takes_0_or_1(monkeypatch, name, value):
    monkeypatch.setenv(f"DISTDL_{name}", value)
    try:
        with pytest.raises(ValueError, match=f"DISTDL_{name}='{value}'; it must be 0 or 1"):
            environment.apply()
    finally:
        monkeypatch.undo()
        environment.apply()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"])
def test_ranks_of_a_machine_share_its_cores(monkeypatch, name):
    """Unless the user says how many threads each of them has."""
    before = torch.get_num_threads()
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    try:
        # ranks, OMP_NUM_THREADS, cores of this rank, threads that torch takes, and those that are left
        for ranks, given, cores, own, threads in (
            (2, "", 8, 8, 4), (3, "", 8, 8, 2), (9, "", 8, 8, 1), (2, "", 8, 4, 2), (2, "", 3, 3, 3), (2, "8", 8, 8, 8),
            ("", "", 8, 8, 8),
        ):  # fmt: skip
            monkeypatch.setenv(name, str(ranks))
            monkeypatch.setenv("OMP_NUM_THREADS", given)
            monkeypatch.setattr("os.sched_getaffinity", lambda process, cores=cores: range(cores))
            monkeypatch.setattr(environment, "_THREADS", own)
            torch.set_num_threads(own)
            environment.apply()
            assert torch.get_num_threads() == threads
    finally:
        monkeypatch.undo()
        environment.apply()
        torch.set_num_threads(before)


@pytest.mark.ranks(1)
@pytest.mark.parametrize(("value", "limit"), [("1000", 1000), ("0", 0), ("", None), ("1 GiB", ValueError)])
def test_a_limit_of_the_pool(monkeypatch, value, limit):
    monkeypatch.setenv("DISTDL_POOL_LIMIT", value)
    try:
        if limit is ValueError:
            with pytest.raises(ValueError, match="DISTDL_POOL_LIMIT='1 GiB'; it has to be a number of bytes"):
                environment.apply()
        else:
            environment.apply()
            assert memory.pool_limit() == limit
    finally:
        monkeypatch.undo()
        environment.apply()
