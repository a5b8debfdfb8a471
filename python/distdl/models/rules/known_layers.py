"""Layers of torch.nn that are recorded as one operation, because a rule knows them."""

from __future__ import annotations

import torch

import distdl.nn
from distdl.models.capture.assignments import HOOKS
from distdl.models.rules import RULES
from distdl.models.rules.applied_layer import twin_of
from distdl.torch_compat.layers import has_global_hooks


def key_of_layer(module: torch.nn.Module) -> str:
    """The key of the rule for a module; "" if none knows it as one operation, whatever it calls."""
    own = vars(module)
    if any(own[name] for name in HOOKS) or hasattr(module, "parametrizations") or has_global_hooks():
        return ""  # the call computes more than the layer
    if any(callable(getattr(type(module), name, None)) for name in own):
        return ""  # such as a forward() of its own
    if twin_of(module) is None:
        return ""
    known = (kind.__name__ for kind in type(module).__mro__ if kind in distdl.nn.SEQUENTIAL)
    return next((name for name in known if name in RULES), "")
