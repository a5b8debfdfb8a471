"""A device whose work comes late: tests/device.

A process that has loaded it has an accelerator, as torch calls it: it is for jobs of its own.
"""

import contextlib
import sys
import types
from pathlib import Path

import torch

_LIBRARY = Path(__file__).parents[3] / "build" / f"device-{torch.__version__}" / "lagging.so"


def _module():
    """What torch expects of the module of a device."""
    module = types.ModuleType("torch.lagging")
    operations = torch.ops.lagging
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 2,  # kDevices; torch.accelerator asks here
        current_device=torch.accelerator.current_device_index,
        device=lambda index: contextlib.nullcontext(),
        synchronize=lambda device=None: operations.synchronize(-1),
        synchronizations=operations.synchronizations,
        fallbacks=operations.fallbacks,
        set_late=operations.set_late,
        set_delay=operations.set_delay,
        open_memory=operations.open_memory,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
    )
    return module


def load():
    """The module of the device, with which torch knows its name."""
    torch.ops.load_library(str(_LIBRARY))
    torch.utils.rename_privateuse1_backend("lagging")
    sys.modules["torch.lagging"] = _module()
    torch._register_device_module("lagging", sys.modules["torch.lagging"])
    torch.utils.generate_methods_for_privateuse1_backend()
    return sys.modules["torch.lagging"]
