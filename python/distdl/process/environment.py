"""The environment variables of distdl, which are read when distdl is imported."""

from __future__ import annotations

import os

import torch

from distdl import _core, memory, progress, watchdog
from distdl.progress_bars import set_progress_bars

_THREADS = torch.get_num_threads()
_HOSTS = {"names": _core.HOSTS_BY_NAME, "one": _core.ONE_HOST, "several": _core.SEVERAL_HOSTS}


def apply() -> None:
    """Apply the settings in the environment variables.

    Raises:
        ValueError: if the value of a variable is not valid.
    """
    debugging = _is_on("DISTDL_DEBUG")
    _core.set_debugging(debugging)
    seconds, end = os.environ.get("DISTDL_WATCHDOG", ""), _is_on("DISTDL_WATCHDOG_END")
    try:
        watchdog.set_watchdog(float(seconds or (60 if debugging else 300)), end=end)
    except ValueError:
        raise ValueError(f"DISTDL_WATCHDOG={seconds!r}; it has to be a number of seconds, at least 0") from None
    set_progress_bars(_is_on("DISTDL_PROGRESS_BARS", by_default=True))
    progress.set_progress_thread(_is_on("DISTDL_PROGRESS_THREAD", by_default=True))
    _core.set_hosts(ranks_on_each_host())
    limit = os.environ.get("DISTDL_POOL_LIMIT") or None
    if limit is not None and not limit.isdecimal():
        raise ValueError(f"DISTDL_POOL_LIMIT={limit!r}; it has to be a number of bytes")
    memory.set_pool_limit(None if limit is None else int(limit))
    memory.set_staging(os.environ.get("DISTDL_STAGING", "where needed"))
    memory.set_device_memory(os.environ.get("DISTDL_DEVICE_MEMORY") or "staged")
    if not os.environ.get("OMP_NUM_THREADS"):
        _divide_cores()


def ranks_on_each_host() -> int:
    """The number of ranks on each host, as DISTDL_HOSTS says."""
    hosts = os.environ.get("DISTDL_HOSTS") or "names"
    number = _HOSTS.get(hosts, int(hosts) if hosts.isdecimal() else -1)
    if number < 0 or number > _core.ONE_HOST or (number == 0 and hosts != "names"):
        raise ValueError(f"DISTDL_HOSTS={hosts!r}; it must be {', '.join(map(repr, _HOSTS))}, or a number of ranks")
    return number


def _divide_cores() -> None:
    """Let the ranks of a machine together compute with the threads that torch takes for one process.

    With more they wait for each other: some networks take six times as long. A rank that is bound to some cores keeps
    the threads that torch takes there. Under srun, the job says how many cores a rank has.
    """
    names = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  # of MPICH and Intel MPI, of Open MPI
    ranks = max(int(os.environ.get(name) or 1) for name in names)
    is_bound = len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)
    if ranks > 1 and not is_bound:
        torch.set_num_threads(max(1, _THREADS // ranks))


def _is_on(name: str, by_default: bool = False) -> bool:
    value = os.environ.get(name) or str(int(by_default))
    if value not in ("0", "1"):
        raise ValueError(f"{name}={value!r}; it must be 0 or 1")
    return value == "1"
