"""The programs of examples/programs: over blocks they say what they say in one process, and differ by a few lines."""

import difflib
import itertools
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from support.ranks import job

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "programs"
DATA = ["--volumes", "6", "--size", "12", "--times", "25", "--rows", "12", "--letters", "1600"]
SMALL = {
    "volumes": ["--volumes", "6", "--channels", "2"],
    "weather": ["--times", "25", "--channels", "4", "--modes", "3"],
    "text": ["--letters", "1600", "--length", "24", "--features", "8", "--heads", "2"],
}
MOST_LINES = 15


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """A function that runs a program, and returns the numbers of each epoch that it prints, on rank 0."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(program, *options):
        monkeypatch.setattr(sys, "argv", [f"{program}.py", "--folder", str(folder), "--double", *options])
        runpy.run_path(str(FOLDER / f"{program}.py"), run_name="__main__")
        lines = re.findall(r"epoch \d+: .*", capsys.readouterr().out)
        return [[float(number) for number in re.findall(r"[-\d.]+", line)] for line in lines]

    return run


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", SMALL)
def test_a_program_over_blocks_says_what_it_says_in_one_process(name, run):
    expected = None
    if job.rank == 0:
        run("make_data", *DATA)
        expected = run(f"{name}_in_one_process", "--epochs", "3", *SMALL[name])
        assert len(expected) == 3
    job.barrier()
    epochs = run(name, "--epochs", "2", *SMALL[name])
    epochs += run(name, "--epochs", "3", *SMALL[name])  # goes on after the second epoch
    if expected is not None:
        assert [epoch for epoch, *_ in epochs] == [0, 1, 2]
        assert epochs[0] == pytest.approx(expected[0], rel=1e-12, abs=1e-12)
        assert epochs == [pytest.approx(numbers, rel=1e-8) for numbers in expected]  # roundings grow in training


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("rows", ["12", "11"])  # of 22 columns, three blocks have different sizes
def test_a_rollout_over_blocks_writes_what_it_writes_in_one_process(rows, run, folder):
    if job.rank == 0:
        run("make_data", *DATA, "--rows", rows)
    job.barrier()
    run("weather", "--epochs", "1", *SMALL["weather"])
    forecasts = ["--channels", "4", "--modes", "3", "--first", "24", "--steps", "5"]
    run("rollout", *forecasts)
    if job.rank == 0:
        run("rollout_in_one_process", *forecasts)
        expected, got = (zarr.open_array(folder / f"rollout{end}.zarr")[:] for end in ("_in_one_process", ""))
        start = np.load(folder / "weather.npy")[24]
        assert got.shape == (5, *start.shape)
        assert all(np.ptp(after - before) > 0.01 for before, after in itertools.pairwise([start, *got]))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", [*SMALL, "rollout"])
def test_a_program_over_blocks_differs_by_a_few_lines(name):
    programs = ((FOLDER / f"{stem}.py").read_text() for stem in (f"{name}_in_one_process", name))
    one, blocks = ([line.strip() for line in program.split('"""', 2)[2].splitlines()] for program in programs)
    added = [line for line in difflib.ndiff(one, blocks) if line.startswith("+ ") and line.strip() != "+"]
    assert len(added) <= MOST_LINES, added
