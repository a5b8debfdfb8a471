"""Jobs that tests start, each within a time in which it has to end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

SECONDS = 200

OUTSIDE = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYD", "MPI_", "MPIR_"))}
# Ranks of Open MPI are not told that a job may have more ranks than there are cores.
OUTSIDE["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
OUTSIDE["PRTE_MCA_hwloc_default_binding_policy"] = "none"


def started(program, ranks=2, by=("-m", "mpi4py"), **environment):
    """A job of as many ranks that is under way, with all it says in one pipe."""
    command = ["mpiexec", "-n", str(ranks), sys.executable, *by, "-c", textwrap.dedent(program)]
    return subprocess.Popen(
        command,
        env={**OUTSIDE, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end_of(job):
    """Its exit status, and what it said."""
    try:
        said = job.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        said = job.communicate()[0]
        raise AssertionError(f"the job does not end; it said:\n{said}") from None
    return job.returncode, said


def ends(program, ranks=2, by=("-m", "mpi4py"), **environment):
    """The exit status of a program, and what it said."""
    return end_of(started(program, ranks, by, **environment))


def is_gone(process, seconds=10):
    """Whether this process ends within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False
