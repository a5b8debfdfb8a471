"""Outcomes that ranks tell each other in the tests: a failure on a rank is a failure on all, and none waits."""

import functools
import os
import re
import time
import traceback

import hypothesis
import pytest
from mpi4py import MPI

from distdl import _core

job = MPI.COMM_WORLD.Dup()


def total(value):
    """The sum of a Python number over all ranks, in rank order."""
    return sum(together(value))


def votes_of(action):
    """How many votes this rank took part in with others."""
    before = _core.votes()
    action()
    return _core.votes() - before


def one_if_parallel():
    """The votes of a call in which the ranks of the job vote once."""
    return 1 if job.size > 1 else 0


# The graph that torch 2.9 adds to errors in programs which it only traced is another one on each rank.
_TEXT_OF_A_RANK = re.compile(r" \(raised on rank|\n\nWhile executing %")


def raises_everywhere(kind, match, action, seconds=20.0, involved=True):
    """`action` raises the same exception on all ranks involved, and none of them waits for so many seconds."""
    job.Barrier()
    start = time.perf_counter()
    error = None
    try:
        action()
    except Exception as raised:
        error = raised
    elapsed = time.perf_counter() - start
    # First the outcomes of all ranks, then the judgement, which is the same on all of them.
    problem = None if error is None else (type(error).__name__, _TEXT_OF_A_RANK.split(str(error))[0])
    outcomes = job.allgather((involved, problem, elapsed))
    told = f"(is involved, exception, seconds) of each rank: {outcomes}"
    assert all((raised is not None) == took_part for took_part, raised, _ in outcomes), f"not those raise: {told}"
    assert len({outcome for took_part, outcome, _ in outcomes if took_part}) == 1, f"exceptions differ: {told}"
    assert max(elapsed for _, _, elapsed in outcomes) < seconds, f"a rank waits: {told}"
    if not involved:
        return ""
    with pytest.raises(kind, match=match):
        raise error
    return str(error)


def examples_of(number):
    """How many examples a job draws for a test that draws so many in the four small jobs together."""
    return int(os.environ.get("DISTDL_DRAWS", -(-number // 4)))


def draws(number):
    """For a test that draws another number of examples than the others."""
    return hypothesis.settings(max_examples=examples_of(number))


class SomewhereError(Exception):
    """A failure on some ranks, in a test on_all_ranks: all ranks know it."""


def exchanged(failure, value=None):
    """Every rank's value. If a rank comes with a failure, all have come here for the last time in this draw."""
    everyone = job.allgather((failure, value))
    failures = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(everyone) if text is not None]
    if failures:
        raise SomewhereError("\n".join(failures))
    return [value for _, value in everyone]


def together(value):
    """Every rank's value, in rank order. Where a rank has failed instead, all do."""
    return exchanged(None, value)


def on_all_ranks(test):
    """For tests that repeat their body (hypothesis): an exception on a rank is raised on all, so they stay in step.

    A rank that fails says so in place of its next message, be it in `together` or at the end.
    """

    @functools.wraps(test)
    def wrapped(*args, **kwargs):
        failed = None
        try:
            raised = None
            try:
                test(*args, **kwargs)
            except (hypothesis.errors.UnsatisfiedAssumption, SomewhereError):
                raise
            except (Exception, pytest.fail.Exception):
                raised = traceback.format_exc()
            exchanged(raised)
        except SomewhereError as known:
            failed = str(known)
        # The same exception from the same line on all ranks: hypothesis goes on by where an exception came from.
        if failed:
            raise AssertionError(failed)

    return wrapped
