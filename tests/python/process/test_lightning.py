"""The example of Lightning: training over blocks is training in one process, also from a checkpoint of other ranks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import OUTSIDE

pytestmark = [pytest.mark.ranks(1), pytest.mark.turns(3)]  # which takes half a minute
PROGRAM = Path(__file__).resolve().parents[3] / "examples" / "lightning" / "train.py"


@pytest.fixture
def losses(tmp_path):
    """A function that runs the example on so many ranks, and returns what it prints at its end."""

    def run(ranks, folder, *options):
        by = ["mpiexec", "-n", str(ranks), sys.executable, "-m", "mpi4py"] if ranks > 1 else [sys.executable]
        command = [*by, str(PROGRAM), "--folder", str(tmp_path / folder), *options]
        done = subprocess.run(command, env=OUTSIDE, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        *_, line = (line for line in done.stdout.splitlines() if " epochs {" in line)
        return ast.literal_eval(line[line.index("{") :])

    return run


def test_training_with_lightning(losses, tmp_path):
    expected = losses(1, "whole", "--one", "--epochs", "3")
    losses(2, "blocks", "--epochs", "2")
    got = losses(1, "blocks", "--epochs", "3", "--checkpoint", str(tmp_path / "blocks" / "last.ckpt"))
    assert set(got) == {"loss", "validation"}
    assert got == pytest.approx(expected, rel=1e-8)  # roundings grow in training
