"""A plugin of pytest: after each test, runs it again for each change that it reaches, with this change switched on.

What happens is written to MUTATIONS_LOG, line by line, by which the next job goes on where this one ended: after a
change that ends the processes, and after a failure that may be the late effect of an earlier change.
"""

import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from mpi4py import MPI

# Before the first import of distdl. Jobs that a test starts ask the file of the rank that starts them.
shared = tempfile.NamedTemporaryFile()  # noqa: SIM115
shared.truncate(1 << 16)
os.environ["MUTATIONS_FILE"] = shared.name

import switched  # noqa: E402

LOG, SECONDS = Path(os.environ["MUTATIONS_LOG"]), float(os.environ["MUTATIONS_SECONDS"])
CASES = int(os.environ.get("MUTATIONS_CASES", "1"))  # of a table
NONE = -1

switched.tried[0] = NONE
job = MPI.COMM_WORLD.Dup()
wanted = set(json.loads(os.environ["MUTATIONS_WANTED"]))
tries, spent, starts = Counter(), Counter(), Counter()
done, doubted, tried_here = set(), set(), set()


def note(kind, test, change=NONE, seconds=0.0):
    """Remember a line of the log."""
    if kind == "start":
        starts[test] += 1
    elif kind == "done":
        done.add(test)
    elif kind == "found":
        wanted.discard(change)
    elif kind == "unsure":
        doubted.add(change)
    elif kind == "survived":
        tries[change, test.partition("[")[0]] += 1
        spent[change] += seconds


def say(*row):
    note(*row)
    if job.rank == 0:
        with LOG.open("a") as log:
            log.write(json.dumps(row) + "\n")


for line in job.bcast(LOG.read_text().splitlines() if job.rank == 0 and LOG.exists() else []):
    note(*json.loads(line))


def run(item, nextitem, change, seconds):
    """Whether a test fails, its seconds, and the changes that it reaches. A job that takes too long ends."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()
    switched.reached[:] = bytes(len(switched.reached))
    switched.tried[0] = change
    # Who waits for a message mostly takes time of the processor; what lasts because others do is not ended so soon.
    signal.setitimer(signal.ITIMER_PROF, 3 + 8 * seconds)
    faulthandler.dump_traceback_later(10 + 20 * seconds, exit=True)
    start = time.monotonic()
    reports = runtestprotocol(item, nextitem=nextitem, log=change == NONE)
    seconds = job.allreduce(time.monotonic() - start, MPI.MAX)
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_PROF, 0)
    switched.tried[0] = NONE
    reached = job.allreduce({i for i, byte in enumerate(switched.reached) if byte}, lambda a, b: a | b)
    return any(report.failed for report in reports), seconds, reached


def try_changes(item, nextitem):
    name = item.nodeid
    table = name.partition("[")[0]
    failed, seconds, reached = run(item, nextitem, NONE, 10)
    if failed:
        say("fails", name)
        if tried_here:
            os._exit(99)
    for change in [] if failed else sorted(reached & wanted, key=lambda change: (change not in doubted, change)):
        if tries[change, table] >= CASES or spent[change] > SECONDS:
            continue
        say("try", name, change)
        failed, _, reached_now = run(item, nextitem, change, seconds)
        if not failed:
            say("survived" if change in reached_now else "missed", name, change, seconds)
        else:
            is_sound = not run(item, nextitem, NONE, seconds)[0]
            say("found" if is_sound or not tried_here else "unsure", name, change)
            if not is_sound:
                os._exit(99)
        tried_here.add(change)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if item.nodeid not in done and starts[item.nodeid] < 10 and wanted:
        say("start", item.nodeid)
        try_changes(item, nextitem)
        say("done", item.nodeid)
    return True
