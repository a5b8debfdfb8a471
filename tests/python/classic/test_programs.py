"""Programs in the style of those that were written for DistDL, unchanged, beside their sequential twins."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import OUTSIDE

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("name", ["lenet5", "resnet", "vgg", "fno", "unet", "primitives"])
def test_equals_its_twin(classic, name):
    losses, expected = runpy.run_path(str(PROGRAMS / f"{name}.py"))["run"]()
    assert len(losses) > 1
    assert losses == pytest.approx(expected, rel=1e-10)


@pytest.mark.turns(2)
@pytest.mark.ranks(1)
@pytest.mark.parametrize(("steps", "ends", "says"), [(2, True, "equal True 2"), (-1, False, "no steps")])
def test_started_by_its_command(steps, ends, says):
    """Arguments arrive, and an exception that is not caught, on one rank, ends the job."""
    command = ["mpiexec", "-n", "2", sys.executable, "-m", "distdl.classic", str(PROGRAMS / "lenet5.py"), str(steps)]
    done = subprocess.run(command, env=OUTSIDE, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode == 0) == ends, done.stderr
    assert says in done.stdout + done.stderr


@pytest.mark.turns(3)
@pytest.mark.ranks(1)
def test_as_a_plugin_of_pytest(tmp_path):
    test = tmp_path / "test_old.py"
    test.write_text("import distdl\n\ndef test_old():\n    assert not distdl.backends.mpi.Partition().active\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "distdl.classic", str(test)]
    done = subprocess.run(command, env=OUTSIDE, cwd=tmp_path, capture_output=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout
