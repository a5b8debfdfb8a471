"""A plugin of pytest: after each test, runs it again for each change that it reaches, with this change switched on.

All that happens is a line of MUTATIONS_LOG, by which the next job goes on where this one ended.
"""

import faulthandler
import json
import os
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
wanted = set(json.loads(os.environ["MUTATIONS_WANTED"]))
first = int(os.environ.get("MUTATION", "-1"))  # tried from the beginning, where a process looks once
switched.tried[0] = first
job = MPI.COMM_WORLD.Dup()
tries, spent, done, crashed, changed = Counter(), Counter(), set(), Counter(), False


def say(*row):
    if job.rank == 0:
        with LOG.open("a") as log:
            log.write(json.dumps(row) + "\n")


def note(kind, test, change=None, seconds=0.0):
    """What a line of the log means to the tests that follow."""
    if kind == "start":
        crashed[test] += 1
    elif kind == "done":
        done.add(test)
    elif kind == "found":
        wanted.discard(change)
    elif kind == "survived":
        tries[change, test.partition("[")[0]] += 1
        spent[change] += seconds


if first < 0:
    rows = job.bcast(LOG.read_text().splitlines() if job.rank == 0 and LOG.exists() else [])
    for row in map(json.loads, rows):
        note(*row)


def run(item, nextitem, change, seconds):
    """Whether a test fails, for how long it runs, and the changes that it reaches."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()
    switched.reached[:] = bytes(len(switched.reached))
    switched.tried[0] = change
    faulthandler.dump_traceback_later(20 + 20 * seconds, exit=True)
    start = time.perf_counter()
    reports = runtestprotocol(item, nextitem=nextitem, log=change == first)
    seconds = job.allreduce(time.perf_counter() - start, MPI.MAX)
    faulthandler.cancel_dump_traceback_later()
    switched.tried[0] = first
    reached = job.allreduce({i for i, byte in enumerate(switched.reached) if byte}, lambda a, b: a | b)
    return any(report.failed for report in reports), seconds, reached


def try_all(item, nextitem):
    """Try the changes that a test reaches. Ends the job after a failure that may be of an earlier change."""
    global changed
    name = item.nodeid
    failed, seconds, reached = run(item, nextitem, first, 10)
    if failed:
        say("fails", name)
        if changed:
            os._exit(99)
        return
    table = name.partition("[")[0]
    for change in sorted(reached & wanted):
        if tries[change, table] > 1 or spent[change] > SECONDS:
            continue
        say("try", name, change)
        failed, _, now = run(item, nextitem, change, seconds)
        if not failed:
            row = ("survived" if change in now else "missed", name, change, seconds)
            note(*row)
        else:
            sound = not run(item, nextitem, first, seconds)[0]
            row = ("found" if sound or not changed else "unsure", name, change)
        say(*row)
        note(*row) if failed else None
        changed = True
        if failed and not sound:
            os._exit(99)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if first >= 0:
        return None
    if item.nodeid not in done and crashed[item.nodeid] < 3 and wanted:
        say("start", item.nodeid)
        try_all(item, nextitem)
        say("done", item.nodeid)
    return True
