"""The table of misuses: calls that concern one rank only."""

from typing import Any

import torch

import distdl
from distdl import memory, progress, watchdog
from support.misuses.table import Row, Wrong


def rows() -> dict[str, Row]:
    """By public name."""

    def structure_check(enabled: Any) -> None:
        with distdl.structure_check(enabled):
            pass

    def parameter_layout(kind: Any) -> None:
        with distdl.parameter_layout(kind):
            pass

    return {
        "zero_volume_tensor": Row(
            distdl.zero_volume_tensor,
            lambda P: {},
            {
                "batch": [Wrong("a", TypeError, "."), Wrong(-1, RuntimeError, "negative"), Wrong(1.5, TypeError, ".")],
                "dtype": [Wrong("float32", TypeError, "dtype")],
                "device": [Wrong("nowhere", RuntimeError, "device")],
                "requires_grad": [Wrong("a", TypeError, ".")],
            },
            alone=True,
        ),
        "local_device": Row(distdl.local_device, lambda P: {}, alone=True),
        "TensorStructure": Row(
            distdl.TensorStructure,
            lambda P: {"tensor": torch.ones(2)},
            {"tensor": [Wrong(v, AttributeError, ".") for v in (None, 3, "a")]},
            alone=True,
        ),
        "structure_check": Row(
            structure_check,
            lambda P: {"enabled": True},
            {"enabled": [Wrong(v, TypeError, ".") for v in ("a", [True])]},
            alone=True,
        ),
        "parameter_layout": Row(
            parameter_layout,
            lambda P: {"kind": "sharded"},
            {"kind": [Wrong(v, ValueError, "'owner', 'sharded', 'replicated'") for v in (None, 3, "Owner")]},
            alone=True,
        ),
        "CommStats": Row(
            distdl.CommStats,
            lambda P: dict.fromkeys(distdl.CommStats.__dataclass_fields__, 0),
            alone=True,
            free=tuple(distdl.CommStats.__dataclass_fields__),
        ),
        "comm_stats": Row(distdl.comm_stats, lambda P: {}, alone=True),
        "reset_comm_stats": Row(distdl.reset_comm_stats, lambda P: {}, alone=True),
        "memory.set_pool_limit": Row(
            memory.set_pool_limit,
            lambda P: {"bytes": memory.pool_limit()},
            {
                "bytes": [
                    Wrong(-1, ValueError, "bytes=-1"),
                    Wrong("a", TypeError, "."),
                    Wrong(1.5, TypeError, "."),
                ]
            },
            alone=True,
        ),
        "memory.pool_limit": Row(memory.pool_limit, lambda P: {}, alone=True),
        "memory.pool_size": Row(memory.pool_size, lambda P: {}, alone=True),
        "memory.pool_used": Row(memory.pool_used, lambda P: {}, alone=True),
        "memory.empty_pool": Row(memory.empty_pool, lambda P: {}, alone=True),
        "memory.set_device_memory": Row(
            memory.set_device_memory,
            lambda P: {"way": memory.device_memory()},
            {"way": [Wrong(v, ValueError, "set_device_memory") for v in ("maybe", None, 3)]},
            alone=True,
        ),
        "memory.device_memory": Row(memory.device_memory, lambda P: {}, alone=True),
        "memory.kinds_of_memory": Row(memory.kinds_of_memory, lambda P: {}, alone=True),
        "memory.takes_devices": Row(memory.takes_devices, lambda P: {}, alone=True),
        "memory.set_staging": Row(
            memory.set_staging,
            lambda P: {"when": memory.staging()},
            {"when": [Wrong(v, ValueError, "set_staging") for v in ("often", None, 3)]},
            alone=True,
        ),
        "memory.staging": Row(memory.staging, lambda P: {}, alone=True),
        "set_watchdog": Row(
            distdl.set_watchdog,
            lambda P: {"seconds": 300.0},
            {
                "seconds": [
                    *[Wrong(v, ValueError, "set_watchdog: seconds=") for v in (-1, float("nan"), float("inf"))],
                    *[Wrong(v, TypeError, ".") for v in ("a", None)],
                ]
            },
            alone=True,
            free=("end",),
        ),
        "watchdog.waiting": Row(
            watchdog.waiting,
            lambda P: {"what": ""},
            {"what": [Wrong(v, TypeError, ".") for v in (None, 3)]},
            alone=True,
        ),
        "set_progress_bars": Row(
            distdl.set_progress_bars,
            lambda P: {"show": True},
            {"show": [Wrong(v, TypeError, "set_progress_bars: show=") for v in (None, 1, "no")]},
            alone=True,
        ),
        "progress.set_progress_thread": Row(
            progress.set_progress_thread,
            lambda P: {"on": progress.progress_thread()},
            {"on": [Wrong(v, TypeError, ".") for v in ("a", [1])]},
            alone=True,
        ),
        "progress.progress_thread": Row(progress.progress_thread, lambda P: {}, alone=True),
    }
