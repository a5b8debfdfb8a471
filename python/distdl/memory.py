"""The memory of tensors on the CPU, and the way to and from devices.

``import distdl`` lets torch take the memory of tensors of 64 KiB and more from a pool, which serves the next tensors
again. A tensor on a device goes to MPI through pinned host memory. The functions concern this rank only.
"""

from __future__ import annotations

import torch

from distdl import _core

_KINDS = {"hip": "rocm", "xpu": "level_zero"}  # the words of MPI for torch's, where they differ
STAGING = {
    "where needed": _core.Staging.where_needed,
    "always": _core.Staging.always,
}


def set_pool_limit(bytes: int | None) -> None:
    """Limit the unused memory that the pool keeps.

    What is freed beyond the limit goes back to the system at once, with the unused memory beside it.

    The environment variable ``DISTDL_POOL_LIMIT`` sets the initial limit, in bytes.

    Args:
        bytes: the limit, or None, the default, for none. With 0 new tensors are in memory of torch's own allocator.

    Raises:
        ValueError: if ``bytes`` is negative.
    """
    if bytes is not None and bytes < 0:
        raise ValueError(f"set_pool_limit: bytes={bytes}; it must be at least 0, or None for no limit")
    _core.set_pool_limit(None if bytes is None or bytes >> 63 else bytes)


def pool_limit() -> int | None:
    """The limit of the pool's unused memory, in bytes; None if there is none."""
    return _core.pool_limit()


def pool_size() -> int:
    """The pool's unused memory, in bytes."""
    return _core.pool_size()


def pool_used() -> int:
    """The memory of the pool that tensors use, in bytes."""
    return _core.pool_used()


def empty_pool() -> None:
    """Give all unused memory back to the system."""
    _core.empty_pool()


def set_staging(when: str) -> None:
    """Choose when messages are staged, that is copied through host memory.

    The environment variable ``DISTDL_STAGING`` sets the initial value.

    Args:
        when: "where needed", the default, for tensors on devices, or "always", also for tensors on the CPU.

    Raises:
        ValueError: for another value.
    """
    if when not in STAGING:
        raise ValueError(f"set_staging: when={when!r}; it must be one of {', '.join(map(repr, STAGING))}")
    _core.set_staging(STAGING[when])


def set_device_memory(way: str) -> None:
    """Choose how messages of tensors on devices travel. No GPU has shown yet that "direct" is right.

    Sums, gathers, and large tensors that go to several ranks are staged in any case. The ranks may choose differently.
    The environment variable ``DISTDL_DEVICE_MEMORY`` sets the initial value.

    Args:
        way: "staged", the default, through memory of the host; or "direct", which hands memory of a device to MPI.

    Raises:
        ValueError: for another value, and for "direct" if the MPI library says that it takes no memory of this device.
            One that does not say, and cannot take it, may crash in the first message.
    """
    if way not in ("staged", "direct"):
        raise ValueError(f"set_device_memory: way={way!r}; it must be 'staged' or 'direct'")
    if way == "direct" and not takes_devices():
        raise ValueError(
            f"set_device_memory: way='direct', but this MPI library takes memory of the kinds {kinds_of_memory()!r} "
            "only; use one that was built for this device"
        )
    _core.set_direct(way == "direct")


def device_memory() -> str:
    """How messages of devices travel: see :func:`distdl.memory.set_device_memory`."""
    return "direct" if _core.direct() else "staged"


def kinds_of_memory() -> str:
    """The kinds of memory that the MPI library takes, such as ``"mpi,system,cuda"``; empty if it does not say.

    Source: ``mpi_memory_alloc_kinds`` in section 12.4.3 of the `MPI standard 4.1
    <https://www.mpi-forum.org/docs/mpi-4.1/mpi41-report.pdf>`_.
    """
    return _core.kinds_of_memory()


def takes_devices() -> bool:
    """Whether the MPI library takes memory of this machine's accelerator, or does not say.

    Without an accelerator: whether it takes memory of any device.
    """
    kinds = {kind.partition(":")[0] for kind in kinds_of_memory().split(",")}
    accelerator = torch.accelerator.current_accelerator()
    if kinds == {""}:
        return True
    if accelerator is None:
        return not kinds <= {"mpi", "system"}
    return _KINDS.get("hip" if torch.version.hip else accelerator.type, accelerator.type) in kinds


def staging() -> str:
    """When messages are staged: see :func:`distdl.memory.set_staging`."""
    return next(name for name, value in STAGING.items() if value == _core.staging())
