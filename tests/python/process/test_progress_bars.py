"""Progress on rank 0: a function sees each step, a bar goes to the terminal, and nothing goes anywhere else."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
import torch

import distdl
from support.blocks import grid
from support.jobs import OUTSIDE
from support.ranks import job, raises_everywhere

pytestmark = pytest.mark.ranks(1, 2)

WITH_BARS = """
import distdl.progress_bars as bars
bars._DELAY = 0
for _ in bars.with_progress("save", range(3), True):
    pass
"""


@pytest.fixture
def steps():
    """What a function is told of progress."""
    told = []
    distdl.set_progress_bars(lambda *step: told.append(step))
    yield told
    distdl.set_progress_bars(True)


def test_a_function_sees_the_steps_on_rank_0(P_world, steps, tmp_path):
    model = distdl.distribute(torch.nn.Conv1d(2, 3, 3), grid(P_world, [1, 1, job.size]))
    model(distdl.scatter(torch.rand(2, 2, 8), model.P_x))
    expected = ["first call, recorded operations", "first call, set-up"] if job.rank == 0 else []
    assert sorted({name for name, *_ in steps}) == expected
    steps.clear()
    path = job.bcast(str(tmp_path / "model.safetensors"))
    distdl.save(path, model)
    distdl.load(path, model)
    distdl.plans(torch.nn.Conv1d(2, 3, 3), P_world, (2, 2, 8))
    expected = {"save", "load", "plans"} if job.rank == 0 else set()
    assert {name for name, done, total in steps if done == total} == expected


def test_anything_else_is_refused():
    raises_everywhere(TypeError, "set_progress_bars: show=3; it has to be", lambda: distdl.set_progress_bars(3))


@pytest.mark.ranks(1)
def test_a_bar_goes_to_the_terminal_alone():
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.set_blocking(ours, False)
    command = [sys.executable, "-c", WITH_BARS]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=OUTSIDE, check=True)
    assert b"save:   0%" in os.read(ours, 10000)
    assert ran.stdout == b""
    ran = subprocess.run(
        command, capture_output=True, env=OUTSIDE, check=True, start_new_session=True
    )  # without a terminal
    assert ran.stdout + ran.stderr == b""
