"""The programs that the pages show print what the pages say."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import OUTSIDE

PROGRAMS = Path(__file__).parents[3] / "docs" / "programs"


@pytest.mark.drawn(2)
@pytest.mark.ranks(1)
@pytest.mark.parametrize("name", sorted(page.stem for page in PROGRAMS.glob("*.txt")))
def test_output(name):
    command = [sys.executable, str(PROGRAMS / "check.py"), name]
    done = subprocess.run(command, env=OUTSIDE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
