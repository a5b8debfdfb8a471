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


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_example(name, tmp_path, monkeypatch, capsys):
    """It raises SystemExit where the losses of the two networks differ by more than rounding."""
    monkeypatch.syspath_prepend(str(FOLDER))
    steps = ["--steps", "2", "--check", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [f"train_{name}.py", *steps, *PROGRAMS[name]])
    runpy.run_path(str(FOLDER / f"train_{name}.py"), run_name="__main__")
    if job.rank == 0:
        assert (tmp_path / f"{name}.png").stat().st_size > 0
        assert "difference from the sequential network" in capsys.readouterr().out
