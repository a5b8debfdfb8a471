"""Lets MPI calls fail, one in each job, and looks at how the job ends.

    python tests/pmpi/faults.py OBSERVER [PART]

OBSERVER is what tests/pmpi/observer.cpp was compiled to. Each function that distdl calls fails on rank 1 of 2 at its
first, its middle and its last call, instead of doing what it should and after it; an exception that follows is caught
by the program or is not. The ranks are on one host, or behave as on several. PART takes every so many-th of these jobs,
from a number on that DISTDL_SEED draws.

A job survives if it ends within the time limit, with the exception that names the function on the rank where it failed,
and on no rank by a crash. If the exception is caught, distdl has to refuse to go on. What fails without being looked at
(MPI_Comm_free, for one, at the end of the communicator) must not change how the job ends.
"""

import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from support.jobs import OUTSIDE

LIMIT = 60.0  # seconds
RANK = 1
PROGRAM = Path(__file__).with_name("program.py")
# Their results are not looked at, since nothing could be done about them.
NOT_LOOKED_AT = ("MPI_Comm_free", "MPI_Group_free", "MPI_Info_free", "MPI_Finalized")


def job(observer, *arguments, **variables):
    """(exit status, output) of the program on two ranks; the status is None if it had to be ended."""
    outside = OUTSIDE | {"OMP_NUM_THREADS": "1"} | variables
    command = ["mpiexec", "-n", "2", "env", f"LD_PRELOAD={observer}", sys.executable, "-m", "mpi4py", str(PROGRAM)]
    try:
        done = subprocess.run([*command, *arguments], env=outside, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as late:
        return None, f"{late.stdout}{late.stderr}"
    return done.returncode, done.stdout + done.stderr


def calls(observer, hosts):
    """How often rank 1 calls each function where nothing fails."""
    with tempfile.TemporaryDirectory() as folder:
        status, said = job(observer, DISTDL_CALLS=f"{folder}/calls", DISTDL_HOSTS=hosts)
        assert status == 0, said
        lines = Path(f"{folder}/calls.{RANK}").read_text().splitlines()
    return {function: int(count) for function, count in map(str.split, lines)}


def what_is_wrong(function, caught, status, said):
    """With how the job ended; nothing if all is well."""
    if status is None:
        return "no end"
    if re.search(r"[Ss]egmentation|terminate called|Aborted|Assertion|corrupt", said) or status > 128:
        return "a crash"
    if function in NOT_LOOKED_AT:
        return "" if status == 0 else f"exit status {status}"
    if status != 1:
        return f"exit status {status}"
    if f"rank {RANK} frees its communicator" in said and f"wait for it: {function.removesuffix('_c')}: " in said:
        return ""  # where a communicator is freed nothing can be raised, so that the end of the program says it
    if f"MPIError: {function.removesuffix('_c')}: " not in said:
        return "no MPIError that names it"
    # What fails while distdl is imported comes before anything that the program could catch.
    caught = caught and f"rank {RANK} has imported distdl" in said
    if caught and (said.count("refused True") != 2 or "ends the job" not in said):
        return "goes on"
    return ""


def main():
    """Prints a line for each job, and how many survived; the exit status is 1 if any did not."""
    observer, part = str(Path(sys.argv[1]).resolve()), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    jobs = [
        (hosts, function, count, when, caught)
        for hosts in ("one", "several")
        for function, n in calls(observer, hosts).items()
        for count in sorted({1, (n + 1) // 2, n})
        for when, caught in itertools.product(("before", "after"), (False, True))
    ]
    tried = survived = 0
    first = random.Random(os.environ.get("DISTDL_SEED", "")).randrange(part)
    for hosts, function, count, when, caught in jobs[first::part]:
        start = time.perf_counter()
        arguments = ["catch"] if caught else []
        status, said = job(observer, *arguments, DISTDL_FAIL=f"{function},{RANK},{count},{when}", DISTDL_HOSTS=hosts)
        if f"observer: {function} fails" not in said:  # how often messages are looked for differs from run to run
            continue
        wrong = what_is_wrong(function, caught, status, said)
        tried += 1
        survived += not wrong
        seconds = time.perf_counter() - start
        how = "caught" if caught else "not caught"
        print(
            f"{hosts:8} {function:24} call {count:4} {when:6} {how:10} {seconds:5.1f} s  {wrong or 'survived'}",
            flush=True,
        )
        if wrong:
            print(said)
    print(f"{tried} MPI calls failed, {survived} jobs ended as they should")
    sys.exit(tried == 0 or survived != tried)


if __name__ == "__main__":
    main()
