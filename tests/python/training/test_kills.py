"""Jobs that are killed while they save: the file of before, or all of the new one.

DISTDL_KILLS is the number of jobs. The long run is
``bash tests/commands.sh kills``.
"""

import os
import random
import re
import signal
import time

import pytest
from safetensors import safe_open

from support.jobs import end_of, started

PROGRAM = """
import os, sys
import torch
from mpi4py import MPI
import distdl

P_x = distdl.Partition(MPI.COMM_WORLD).create_cartesian_topology_partition([2, 1])
with distdl.parameter_layout("sharded"):
    layer = distdl.nn.DistributedLinear(P_x, 1024, 2048)
for number in range(100_000):
    with torch.no_grad():
        layer.weight.fill_(number)
        layer.bias.fill_(number)
    distdl.save(os.environ["FILE"], layer, number=number)
    if number == 0:
        pids = MPI.COMM_WORLD.allgather(os.getpid())
        if MPI.COMM_WORLD.rank == 0:
            print(*pids, flush=True)
"""


@pytest.mark.ranks(1)
def test_a_kill_at_any_moment_loses_nothing(P_world, tmp_path):
    path, draw, interrupted = tmp_path / "run", random.Random(1), 0
    kills = int(os.environ.get("DISTDL_KILLS", 1))
    for _ in range(kills):
        job = started(PROGRAM, FILE=str(path))
        line = job.stdout.readline()
        assert re.fullmatch(r"\d+ \d+\n", line), line + end_of(job)[1]
        pids = list(map(int, line.split()))
        time.sleep(draw.uniform(0.0, 0.2))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        end_of(job)
        with safe_open(path, framework="pt") as file:
            numbers = {float(number) for name in ("weight", "bias") for number in file.get_tensor(name).unique()}
        assert len(numbers) == 1
        interrupted += sum(1 for left in tmp_path.iterdir() if left != path)
        for left in tmp_path.iterdir():
            if left != path:
                left.unlink()
    print(f"{kills} jobs were killed, {interrupted} of them while they saved")
    assert 4 * interrupted > kills or kills < 10
