"""The training programs of examples/networks, a few steps: equal to their sequential twins, with a picture."""

import runpy
import sys
from pathlib import Path

import pytest

from support.ranks import job

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "networks"

PROGRAMS = {
    "unet": ["--size", "16", "--volumes", "3"],
    "resnet": ["--batch-size", "120"],
    "gpt": ["--batch-size", "2", "--length", "12", "--features", "8", "--heads", "2", "--layers", "1"],
}


@pytest.fixture
def said(folder, monkeypatch, capsys):
    """A function that runs a program, and returns what it says on rank 0.

    A program raises SystemExit where the losses of the two networks differ by more than rounding.
    """
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name, *options):
        arguments = [f"train_{name}.py", "--steps", "2", "--output", str(folder), *options]
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(str(FOLDER / arguments[0]), run_name="__main__")
        if job.rank > 0:
            return None
        assert (folder / f"{name}.png").stat().st_size > 0
        text = capsys.readouterr().out
        assert "difference from the sequential network" in text
        return text

    return run


@pytest.mark.drawn(2)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_example(name, said):
    said(name, "--check", "1", *PROGRAMS[name])


@pytest.mark.turns(3)
@pytest.mark.ranks(2)
def test_a_run_that_was_stopped_goes_on(said):
    """It compares as well after a stop, on fewer ranks; then it is stopped after the first of two steps."""
    small = ["--check", "2", "--side", "12", "--channels", "3", "--depth", "2", "--batch-size", "4"]
    for stop, steps in (("1", "0 to 1 of 2"), ("0", "1 to 2 of 2")):
        text = said("hybrid", "--stop", stop, *small)
        assert text is None or steps in text
