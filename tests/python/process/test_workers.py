"""Processes that load data for ranks: they import distdl, and are no ranks."""

import subprocess
import sys

import pytest

from support import jobs

PROGRAM = """
import distdl
import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        from mpi4py import MPI

        assert not MPI.Is_initialized()
        return torch.tensor(float(i))


if __name__ == "__main__":
    from mpi4py import MPI

    P = distdl.Partition(MPI.COMM_WORLD)
    sums = distdl.nn.AllSumReduce(P, [0])
    for method in ("spawn", "forkserver"):
        loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context=method)
        found = [sums(batch).tolist() for batch in loader]
        assert found == [[0.0, 2.0], [4.0, 6.0]], found
"""


@pytest.mark.turns(3)
@pytest.mark.ranks(1)
def test_workers_that_import_distdl(tmp_path):
    """Spawned ones, and those of a fork server, on two ranks."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        ["mpiexec", "-n", "2", sys.executable, "-m", "mpi4py", str(program)],
        env=jobs.OUTSIDE,
        capture_output=True,
        text=True,
        timeout=jobs.SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
